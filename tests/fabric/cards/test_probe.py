"""The loops over a real group: both ends agree, what is timed is what was sent, sums are right."""

from __future__ import annotations

import numpy as np
import pytest

from tbkit.fabric.cards import build, probe
from tests.fabric.conftest import Ranks

PROBE = "from tbkit.fabric.cards import probe\nresult = probe."


def test_latency_has_as_many_samples_at_both_ends(pool: Ranks) -> None:
    """Each size in the order given, all above 0, at most the iterations asked."""
    ranks = pool.group(2)
    code = PROBE + "latency(g, 1 - rank, [4096, 8, 65536], 50, 0.05)"
    low, high = pool.run(code, ranks)
    assert list(low) == list(high) == ["4096", "8", "65536"]
    for size in low:
        assert probe.LEAST_TURNS <= len(low[size]) == len(high[size]) <= 50
        assert (low[size] > 0).all() and (high[size] > 0).all()


@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
def test_a_stream_is_timed_where_it_arrives(pool: Ranks, way: tuple[int, int]) -> None:
    """In either direction the target alone has rows: messages after the first, and their time."""
    ranks = pool.group(2)
    code = PROBE + "stream(g, *way, [64, 1 << 20], 4 << 20, 5, 0.2)"
    found = pool.run(code, ranks, way=way)
    assert found[way[0]] == {}
    rows = found[way[1]]
    for size, most in (("64", probe.STREAM_MESSAGES), ("1048576", 4)):
        assert rows[size].shape[1] == 2 and probe.LEAST_WINDOWS <= len(rows[size]) <= 5
        assert (rows[size][:, 0] == rows[size][0, 0]).all() and 3 <= rows[size][0, 0] < most
        assert (rows[size][:, 1] > 0).all()
    assert build.bandwidth_row(1 << 20, [rows["1048576"]] * 2).average_bytes_per_s > 1e6


def test_both_ways_at_once_do_not_block_each_other(pool: Ranks) -> None:
    """Messages far longer than a channel holds go both ways; each end times what came to it."""
    ranks = pool.group(2)
    code = PROBE + "both(g, 1 - rank, [64, 100_000, 4 << 20], 4 << 20, 4, 0.1)"
    for end in pool.run(code, ranks):
        assert list(end) == ["64", "100000", str(4 << 20)]
        assert all((rows > 0).all() for rows in end.values())


def test_all_reduce_counts_wrong_elements(pool: Ranks) -> None:
    """None on a sound group; every one on a rank that expects another sum."""
    ranks = pool.group(3)
    code = PROBE + "all_reduce(g, [4, 4096, 1 << 20], 20, 0.05)"
    for found in pool.run(code, ranks):
        assert [samples[-1] for samples in found.values()] == [0, 0, 0]
        assert len({len(found[size]) for size in found}) >= 1 and all(len(x) > 2 for x in found.values())
    broken = "from tbkit.fabric.cards import probe\nsound = probe.summands\n"
    broken += "probe.summands = lambda *a: (sound(*a)[0], sound(*a)[1] + (rank == 1))\n"
    broken += "result = probe.all_reduce(g, [4096], 20, 0.05)\nprobe.summands = sound"
    assert [found["4096"][-1] for found in pool.run(broken, ranks)] == [0, 1024, 0]


def test_the_exact_sum_is_exact() -> None:
    """float32 holds every partial sum of 16 ranks."""
    parts = [probe.summands(5000, rank, 16) for rank in range(16)]
    assert np.array_equal(sum(part.astype(np.float64) for part, _ in parts), parts[0][1].astype(np.float64))


@pytest.mark.parametrize(
    ("turn_us", "most", "budget_s", "expected"),
    [
        (1.0, 1000, 1.0, 1000),
        (10_000.0, 1000, 1.0, 100),
        (1e6, 1000, 1.0, 10),
        (1e6, 4, 1.0, 4),
        (0.0, 7, 1.0, 7),
    ],
)
def test_turns_fit_the_budget(turn_us: float, most: int, budget_s: float, expected: int) -> None:
    """As many as asked where there is time; as few as the least where there is none."""
    assert probe.turns(turn_us, most, budget_s, probe.LEAST_TURNS) == expected
