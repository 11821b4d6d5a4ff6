"""The design of an experiment: which loads, which arms in them, how many blocks, in what order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from tbkit.errors import PlanError, UsageError
from tbkit.plan import Placement, Plans

ALL_ARMS = ("P", "F", "L", "C", "N", "A")
SOURCES = "sources"  # the pieces, alone and together, and the links: measured in every block beside the arms


class Design(msgspec.Struct, frozen=True):
    """Numbers of a scaling experiment. ``full`` are the (nodes, kind) that run all arms; the others run P and F."""

    on: tuple[int, ...] = (1, 2, 4)
    blocks: int = 5
    steps: int = 6
    warmup_blocks: int = 10  # at the most
    loads: int = 5
    seed: int = 0
    full: tuple[tuple[int, str], ...] = ((2, "tensor-uneven"),)
    backend: str = "fabric"
    spread_orders: int = 2  # permuted reduction orders behind the gate's bound

    def check(self) -> None:
        """UsageError for numbers that give no interval."""
        for name, least in (("blocks", 2), ("steps", 2), ("loads", 1), ("warmup_blocks", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name}", f"at least {least}", str(getattr(self, name)))
        if not self.on or any(n < 1 for n in self.on):
            raise UsageError(
                "--on", "counts of nodes, each at least 1", ",".join(map(str, self.on)), "Try --on 1,2,4"
            )

    def arms(self, nodes: int, kind: str) -> tuple[str, ...]:
        """The interventions of a load; a single node has nothing to intervene in."""
        if nodes == 1:
            return ("P",)
        if (nodes, kind) in self.full and self.backend == "fabric":
            return ALL_ARMS
        return ("P", "F") if self.backend == "fabric" else ("P",)

    def has_sources(self, nodes: int, kind: str) -> bool:
        """Whether a load measures second sources: the full ones, and the single node they are compared with."""
        return nodes == 1 or ((nodes, kind) in self.full and self.backend == "fabric")


SMALL = Design(on=(1, 2), blocks=2, steps=2, warmup_blocks=1, loads=1, spread_orders=1)
QUICK = Design(blocks=5, steps=6, warmup_blocks=3, loads=1)


def chosen(every: Sequence[Plans], kinds: Sequence[str] | None) -> list[Placement]:
    """The placements to run: those of the named kinds, else all that fit; PlanError where a count has none."""
    placements = []
    for plans in every:
        fitting = [p for p in plans if p.fits and (kinds is None or plans.nodes == 1 or p.kind in kinds)]
        if not fitting and kinds:
            reasons = [f"{p.kind}: {'; '.join(p.reasons)}" for p in plans if p.kind in kinds]
            known = ", ".join(p.kind for p in plans)
            raise PlanError(
                f"{plans.nodes} nodes",
                "runs a plan of the kinds asked for",
                ", ".join(kinds),
                " ".join(reasons) or f"Kinds are {known}",
            )
        if not fitting:
            raise PlanError(f"{plans.nodes} nodes", "has a plan that fits", "none", "Use fewer nodes")
        placements += fitting
    return placements


def order_of_loads(placements: Sequence[Placement], design: Design) -> list[tuple[int, Placement]]:
    """Every placement ``loads`` times, numbered in the random order in which they run."""
    each = [p for p in placements for _ in range(design.loads)]
    random.Random(design.seed).shuffle(each)
    return list(enumerate(each))


def order_of_arms(arms: Sequence[str], load: int, block: int, seed: int) -> list[str]:
    """The arms of one block in random order, the same for the same seed."""
    mixed = list(arms)
    random.Random(f"{seed}/{load}/{block}").shuffle(mixed)
    return mixed
