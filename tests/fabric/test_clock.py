"""Clock alignment, judged on offsets and drifts that were put in: the truth is inside the stated bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tbkit.errors import UsageError
from tbkit.fabric.clock import Bounds, Clock, highest

TRIALS = 100
S = 10**9  # ns


def simulated(
    rng: np.random.Generator, exchanges: int, offset_ns: int, drift: float
) -> tuple[np.ndarray, Any]:
    """Raw readings with ways that are unlike: each has its own least time and its own heavy tail, and a tenth of
    the messages of one way meets a queue. The other's true clock as a function of ours."""
    start = int(rng.integers(1, 10**15))
    there, back = rng.uniform(1e3, 60e3, 2)
    pauses = rng.exponential(2e5, exchanges)
    queue = np.where(rng.random(exchanges) < 0.1, rng.uniform(0, 1e6, exchanges), 0)
    forth = there + rng.exponential(rng.uniform(100, 3e4), exchanges) + queue
    home = back + rng.pareto(2.0, exchanges) * rng.uniform(100, 1e4)
    work = rng.uniform(50, 2000, exchanges)
    begun = start + np.cumsum(pauses + np.concatenate([[0], (forth + work + home)[:-1]]))

    def other(ours: Any) -> Any:
        return ours + offset_ns + drift * (ours - start)

    moments = np.stack([begun, begun + forth, begun + forth + work, begun + forth + work + home])
    moments[1:3] = other(moments[1:3])
    return np.floor(moments.T).astype(np.int64), other


def test_simulated_ways_that_are_unlike() -> None:
    """Inside the bound in all trials, before, during and long after the exchanges; and the bound says something."""
    rng = np.random.default_rng(20_26)
    outside, breadths = 0, []
    for _ in range(TRIALS):
        stamps, other = simulated(rng, 300, int(rng.integers(-S, S)), float(rng.uniform(-2e-4, 2e-4)))
        clock = Clock.of(stamps, 1, ours_first=True)
        first, last = int(stamps[0, 0]), int(stamps[-1, 3])
        for moment in (first - S, first, (first + last) // 2, last, last + 60 * S):
            outside += abs(clock.at(moment) - other(moment)) > clock.bound_ns(moment)
        middle = (first + last) // 2
        breadths.append(clock.bound_ns(middle) / clock.round_trip_ns)
        assert abs(clock.drift) < 1e-2 and clock.bent_ns == 0
    assert outside == 0
    assert np.median(breadths) < 0.7 and max(breadths) < 1.0  # half of the best round trip, about


def test_both_ends_tell_the_same_clocks() -> None:
    """The answering rank's view, from the same readings, is the inverse of the asking one's."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        stamps, other = simulated(rng, 100, int(rng.integers(-(10**17), 10**17)), 5e-5)
        asks, answers = Clock.of(stamps, 1, True), Clock.of(stamps, 0, False)
        moment = int(stamps[50, 0])
        theirs = int(other(moment))
        assert abs(answers.at(theirs) - moment) <= answers.bound_ns(theirs) + 64  # float64 at 1e17 ns
        assert abs(answers.ours(moment) - asks.at(moment)) <= asks.bound_ns(moment) + answers.bound_ns(theirs)


def test_a_clock_that_was_set_meanwhile_is_said_to_be_bent() -> None:
    """No line fits a step of 10 ms: the bound covers both sides of it, and says so."""
    rng = np.random.default_rng(3)
    stamps, other = simulated(rng, 200, 0, 0.0)
    stamps[100:, 1:3] += 10_000_000
    clock = Clock.of(stamps, 1, True)
    assert clock.bent_ns > 1e6
    for turn, step in ((10, 0), (190, 10_000_000)):
        moment = int(stamps[turn, 0])
        assert abs(clock.at(moment) - (other(moment) + step)) <= clock.bound_ns(moment)


def test_the_bound_is_that_of_the_best_line() -> None:
    """Against a search over lines: none that keeps the bounds goes beyond what is stated, and one comes close."""
    rng = np.random.default_rng(11)
    for _ in range(10):
        x, z = np.sort(rng.uniform(0, 10, 12)), np.sort(rng.uniform(0, 10, 12))
        upper, lower = (
            Bounds(x, 0.3 * x + rng.exponential(1, 12)),
            Bounds(z, -0.3 * z + rng.exponential(1, 12)),
        )
        slopes = np.linspace(-20, 20, 20_001)
        for moment in (-3.0, 0.0, 4.2, 10.0, 15.0):
            # A line of this slope may be as high as its lowest upper bound allows.
            room = (upper.offset[:, None] - slopes * x[:, None]).min(0)
            floor = (-lower.offset[:, None] - slopes * z[:, None]).max(0)
            reached = (room + slopes * moment)[room >= floor].max()
            stated = highest(upper, lower, moment)
            assert reached - 1e-9 <= stated <= reached + 0.1


def test_too_few_readings_are_refused() -> None:
    """Fewer than eight exchanges, or another shape, are a UsageError."""
    for stamps in (np.zeros((7, 4), np.int64), np.zeros((10, 3), np.int64), np.zeros(40, np.int64)):
        with pytest.raises(UsageError, match="exchanges"):
            Clock.of(stamps, 1, True)


def test_put_in_offsets_and_drifts_are_found(pool: Any) -> None:
    """Two processes, one clock, one of them skewed: inside the bound in at least 95 of 100 trials on either rank, at
    the end of the exchanges and ten seconds later. The bound is below the round trip: no answer is bought by width."""
    rng = np.random.default_rng(406)
    offsets = rng.integers(-S, S, TRIALS).tolist()
    drifts = rng.uniform(-1e-4, 1e-4, TRIALS).tolist()
    code = """
import time
from tbkit import _kernels
from tbkit.fabric.clock import align
result = []
for offset, drift in zip(offsets, drifts):
    origin = g.clock_stamps(1 - rank, 1)[0, 0]  # rank 0 asks: by its clock, which is the true one
    if rank == 1:
        _kernels.testing_skew(g, offset, int(origin), drift)
    clock = align(g, 1 - rank, 60, 20.0)
    true = lambda t: t + offset + drift * (t - origin)
    now = time.monotonic_ns()
    for t in (now, now + 10 * 10**9):
        ours, theirs = (t, true(t)) if rank == 0 else (round(true(t)), t)
        result.append((abs(clock.at(ours) - theirs), clock.bound_ns(ours)))
    result.append((clock.bound_ns(clock.origin_ns), float(clock.round_trip_ns)))
    if rank == 1:
        _kernels.testing_skew(g, 0, 0, 0.0)
"""
    for answer in pool.run(code, pool.group(2), offsets=offsets, drifts=drifts):
        found = np.array(answer).reshape(TRIALS, 3, 2)
        for moment in (0, 1):
            inside = found[:, moment, 0] <= found[:, moment, 1]
            assert inside.sum() >= 95, (moment, int(inside.sum()))
        assert np.median(found[:, 2, 0] / found[:, 2, 1]) < 1.5


def test_plain_clocks_of_one_machine_are_equal(pool: Any) -> None:
    """Nothing put in: the offset is 0 within a bound, and the text says what was found."""
    code = """
from tbkit.fabric.clock import align
clock = align(g, 1 - rank, 200, 50.0)
result = clock.offset_ns(clock.origin_ns), clock.bound_ns(clock.origin_ns), str(clock), clock.stamps
"""
    answers = pool.run(code, pool.group(2))
    for rank, (offset, bound, words, stamps) in enumerate(answers):
        assert abs(offset) <= bound
        assert f"rank {1 - rank}: " in words and "200 exchanges" in words and "ppm" in words
        assert (np.diff(stamps, axis=1) >= 0).all() and stamps.shape == (200, 4)
    assert (answers[0][3] == answers[1][3]).all()
