"""Raw samples of one load, arranged by block: what every term of the ledger is computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

import msgspec

from tbkit.record import Sample
from tbkit.stats import split_max


def rows_of(table: Any) -> list[Sample]:
    """Samples of a pyarrow table of samples."""
    return [msgspec.convert(row, Sample, strict=False) for row in table.to_pylist()]


class Blocks:
    """The measured blocks of one plan on ``nodes`` nodes, in order; times are microseconds."""

    def __init__(self, rows: Iterable[Sample], nodes: int, plan: str) -> None:
        self.nodes, self.plan = nodes, plan
        self._steps: dict[tuple[str, tuple[int, int], int], list[Sample]] = defaultdict(list)
        for row in rows:
            if row.nodes == nodes and row.plan == plan and not row.warmup:
                self._steps[row.intervention, (row.load, row.block), row.rank].append(row)
        self.keys = sorted({key for _, key, _ in self._steps})
        self.names = {name for name, _, _ in self._steps}

    def has(self, *arms: str) -> bool:
        """Whether all of these arms were measured."""
        return set(arms) <= self.names

    @property
    def loads(self) -> int:
        """How many loads the blocks are of."""
        return len({load for load, _ in self.keys})

    def units(self, values: Sequence[float]) -> list[float]:
        """The independent units among one value a block: means of loads where there are several."""
        if self.loads < 2:
            return list(values)
        by_load: dict[int, list[float]] = defaultdict(list)
        for (load, _), value in zip(self.keys, values, strict=True):
            by_load[load].append(value)
        return [fmean(blocks) for blocks in by_load.values()]

    def steps(self, arm: str, key: tuple[int, int]) -> list[list[float]]:
        """Step times by rank."""
        return [[row.step_us for row in self._rows(arm, key, rank)] for rank in range(self.nodes)]

    def _rows(self, arm: str, key: tuple[int, int], rank: int) -> list[Sample]:
        return sorted(self._steps[arm, key, rank], key=lambda row: row.step)

    def medians(self, arm: str) -> list[list[float]]:
        """By block, by rank: the median step."""
        return [[median(steps) for steps in self.steps(arm, key)] for key in self.keys]

    def mean(self, arm: str) -> list[float]:
        """By block: the mean over ranks of their medians."""
        return [fmean(ranks) for ranks in self.medians(arm)]

    def slowest(self, arm: str) -> list[float]:
        """By block: the slowest rank, chosen on odd steps and measured on even ones."""
        return [split_max(self.steps(arm, key)) for key in self.keys]

    def together(self, arm: str) -> list[float]:
        """By block, for arms whose ranks wait for each other in every step: the largest median."""
        return [max(ranks) for ranks in self.medians(arm)]

    def segments(self, arm: str, key: tuple[int, int]) -> list[list[list[float]]]:
        """By rank, by step: the segments of computation between cuts."""
        return [[row.segments or [] for row in self._rows(arm, key, rank)] for rank in range(self.nodes)]

    def single(self, name: str) -> list[list[float]]:
        """By block, by rank: a quantity measured once a block; 0 where a rank has none."""
        return [[sum(self.steps(name, key)[rank]) for rank in range(self.nodes)] for key in self.keys]

    def pieces(
        self, how: str, only: Sequence[str] | None = None, but: Sequence[str] = ()
    ) -> list[list[float]]:
        """By block, by rank: the sum of the pieces timed ``alone`` or ``together``."""
        names = [n for n in self.names if n.startswith(f"{how}/") and n != f"{how}/segments"]
        kept = [n for n in names if (only is None or n.split("/")[1] in only) and n.split("/")[1] not in but]
        each = [self.single(name) for name in kept]
        return [
            [sum(one[b][rank] for one in each) for rank in range(self.nodes)] for b in range(len(self.keys))
        ]
