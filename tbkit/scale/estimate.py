"""From raw samples to arms and speed-ups: medians of blocks, intervals over blocks or over loads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import hypot, sqrt
from statistics import fmean, median

from tbkit.record import Arm, Interval, Sample, SpeedUp
from tbkit.stats import log_interval, ratio, reciprocal, widen

Key = tuple[int, str, str]  # nodes, plan, intervention
Drifts = dict[
    tuple[int, str], list[float]
]  # (nodes, plan): log of the sentinel's end over its begin, by load


def block_times_us(samples: Iterable[Sample]) -> dict[Key, dict[int, list[float]]]:
    """Step time of each measured block by arm and load: the slowest rank's median over the block's steps.

    Ranks of F and P wait for each other in every step, so the slowest is the step of all.
    """
    steps: dict[tuple[Key, int, int, int], list[float]] = defaultdict(list)
    for s in samples:
        if not s.warmup and "/" not in s.intervention:
            steps[(s.nodes, s.plan, s.intervention), s.load, s.block, s.rank].append(s.step_us)
    ranks: dict[tuple[Key, int, int], list[float]] = defaultdict(list)
    for (key, load, block, _), times in steps.items():
        ranks[key, load, block].append(median(times))
    blocks: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (key, load, _), medians in sorted(ranks.items()):
        blocks[key][load].append(max(medians))
    return {key: dict(loads) for key, loads in blocks.items()}


def units_us(loads: dict[int, list[float]]) -> list[float]:
    """The independent units of an interval: loads where there are several, else the blocks of the one."""
    if len(loads) > 1:
        return [fmean(blocks) for blocks in loads.values()]
    return next(iter(loads.values()))


def drift_of(nodes: int, plan: str, drifts: Drifts | None) -> float:
    """What the sentinels' drift adds to an interval between loads: its root mean square over √loads, in logs."""
    found = (drifts or {}).get((nodes, plan), [])
    return sqrt(fmean(d * d for d in found) / len(found)) if len(found) > 1 else 0.0


def arms(
    samples: Sequence[Sample],
    facts: dict[Key, tuple[int, int]],
    stability: dict[tuple[int, str], tuple[bool, float]],
    drifts: Drifts | None = None,
) -> tuple[Arm, ...]:
    """Every arm with its interval. ``facts``: collectives, bytes a step; ``stability``: stable, warm-up spread."""
    found = []
    for key, loads in block_times_us(samples).items():
        nodes, plan, intervention = key
        step = widen(log_interval(units_us(loads)), drift_of(nodes, plan, drifts))
        collectives, carried = facts.get(key, (0, 0))
        stable, moved = stability[nodes, plan]
        blocks = sum(map(len, loads.values()))
        found.append(
            Arm(
                nodes,
                plan,
                intervention,
                step,
                reciprocal(step, 1e6),
                blocks,
                _steps(samples, key),
                collectives,
                carried,
                stable,
                moved,
            )
        )
    order = {name: i for i, name in enumerate("PFLCNA")}
    return tuple(sorted(found, key=lambda a: (a.nodes, a.plan, order[a.intervention])))


def _steps(samples: Sequence[Sample], key: Key) -> int:
    matching = (s.step for s in samples if (s.nodes, s.plan, s.intervention) == key and not s.warmup)
    return max(matching) + 1


def speedups(samples: Sequence[Sample], drifts: Drifts | None = None) -> tuple[SpeedUp, ...]:
    """T_1/T_p of P for every plan on more than one node; loads are not paired, so Welch on logs."""
    plain = {key[:2]: units_us(loads) for key, loads in block_times_us(samples).items() if key[2] == "P"}
    single = plain.pop((1, "one"), None)
    if single is None:
        return ()
    made: list[SpeedUp] = []
    for (nodes, plan), times in sorted(plain.items()):
        drift = hypot(drift_of(1, "one", drifts), drift_of(nodes, plan, drifts))
        found: Interval = widen(ratio(single, times), drift)
        made.append(SpeedUp(nodes, plan, found.value, found.low, found.high))
    return tuple(made)
