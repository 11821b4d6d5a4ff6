"""From synthetic samples to arms and speed-ups: answers that are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log

import pytest

from tbkit.record import Sample
from tbkit.scale.estimate import arms, block_times_us, speedups, units_us
from tbkit.stats import log_interval

UNEVEN = "tensor-uneven"


def samples(
    nodes: int, plan: str, blocks: Sequence[float], *, arm: str = "P", load: int = 0, warmup: bool = False
) -> Iterable[Sample]:
    """Three steps of each block on every rank; the last rank is the slowest, the middle step the median."""
    for number, us in enumerate(blocks):
        for rank in range(nodes):
            own = us * (1 - 0.1 * (nodes - 1 - rank))
            for step, factor in enumerate((0.5, 1.0, 3.0)):
                yield Sample(load, nodes, plan, arm, number, warmup, step, rank, own * factor)


def test_a_blocks_time_is_the_slowest_ranks_median() -> None:
    """Warm-up and second sources do not count."""
    rows = [*samples(2, UNEVEN, [100.0, 120.0]), *samples(2, UNEVEN, [900.0], warmup=True)]
    rows.append(Sample(0, 2, UNEVEN, "alone/q_proj", 0, False, 0, 0, 5.0))

    assert block_times_us(rows) == {(2, UNEVEN, "P"): {0: [100.0, 120.0]}}


def test_units_are_blocks_of_one_load_or_the_loads() -> None:
    """Several loads: each is one unit, its blocks averaged."""
    assert units_us({0: [100.0, 110.0]}) == [100.0, 110.0]
    assert units_us({0: [100.0, 110.0], 1: [95.0, 95.0]}) == [105.0, 95.0]


def test_arms_hold_interval_rate_and_counts() -> None:
    """Geometric mean with Student's t on logs; the rate is its reciprocal; counts and stability as given."""
    rows = [
        *samples(1, "one", [100.0, 121.0]),
        *samples(2, UNEVEN, [64.0, 100.0]),
        *samples(2, UNEVEN, [70.0, 80.0], arm="F"),
    ]
    stability = {(1, "one"): (True, 0.01), (2, UNEVEN): (False, 0.3)}
    found = arms(rows, {(2, UNEVEN, "P"): (6, 488)}, stability)

    assert [(a.nodes, a.plan, a.intervention) for a in found] == [
        (1, "one", "P"),
        (2, UNEVEN, "P"),
        (2, UNEVEN, "F"),
    ]
    one, plain, _ = found
    assert one.step_us.value == pytest.approx(110.0) and plain.step_us == log_interval([64.0, 100.0])
    assert plain.decode_tok_s.value == pytest.approx(1e6 / 80.0)
    assert plain.decode_tok_s.low == pytest.approx(1e6 / plain.step_us.high)
    assert (plain.collectives_a_step, plain.bytes_a_step, plain.stable, plain.spread) == (6, 488, False, 0.3)
    assert (plain.blocks, plain.steps_a_block, one.collectives_a_step) == (2, 3, 0)


def test_the_speed_up_and_its_interval_are_welchs() -> None:
    """Known answer: logs of 100 e^±a against 50 e^±b give 2 with Welch's t from both variances."""
    a, b = 0.1, 0.05
    rows = [
        *samples(1, "one", [100 * exp(-a), 100 * exp(a)]),
        *samples(2, UNEVEN, [50 * exp(-b), 50 * exp(b)]),
        *samples(2, UNEVEN, [1.0, 1.0], arm="F"),
    ]
    (found,) = speedups(rows)
    variance = a * a + b * b  # of the difference of two means of two values: s^2/n = (2 a^2 / 1) / 2
    freedom = variance**2 / (a**4 + b**4)
    from scipy import stats

    half = float(stats.t.ppf(0.975, freedom)) * variance**0.5
    assert found.value == pytest.approx(2.0)
    assert (log(found.low), log(found.high)) == pytest.approx((log(2) - half, log(2) + half))


def test_a_speed_up_of_exact_times_is_exact() -> None:
    """No scatter, no width; every plan and count gets its own; a slow-down is below 1."""
    rows = [
        *samples(1, "one", [100.0] * 3),
        *samples(2, UNEVEN, [62.5] * 3),
        *samples(4, UNEVEN, [125.0] * 3),
        *samples(2, "pipeline", [100.0] * 3),
    ]
    found = {(s.nodes, s.plan): (s.value, s.low, s.high) for s in speedups(rows)}

    assert found == {
        (2, UNEVEN): pytest.approx((1.6,) * 3),
        (4, UNEVEN): pytest.approx((0.8,) * 3),
        (2, "pipeline"): pytest.approx((1.0,) * 3),
    }


def test_without_the_base_there_is_no_speed_up() -> None:
    """No single node, no ratio."""
    assert speedups([*samples(2, UNEVEN, [62.5] * 3)]) == ()
