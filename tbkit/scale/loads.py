"""One load: a plan placed, gated, warmed up, and measured in randomised blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from tbkit.cluster.shard import ShardedModel
from tbkit.errors import NotApplied
from tbkit.plan import Placement
from tbkit.record import Sample
from tbkit.scale.decode import Decode
from tbkit.scale.design import SOURCES, Design, order_of_arms
from tbkit.stats import agree, spread

WARMUP_TOLERANCE = 0.02


def program_collectives(plan: Placement, layers: int) -> list[int]:
    """Collectives a rank meets in one step of a plan: the program's count."""
    if plan.nodes == 1:
        return [0]
    if plan.kind == "pipeline":
        last = plan.nodes - 1
        return [(rank > 0) + (rank < last) + 1 for rank in range(plan.nodes)]
    return [2 * layers + 2] * plan.nodes


class Load:
    """One placing of a plan, being measured. ``warmup`` keeps the block medians of P."""

    def __init__(self, number: int, model: ShardedModel, work: Decode, design: Design) -> None:
        self.number, self.model, self.work, self.design = number, model, work, design
        self.plan = model.plan
        self.arms = design.arms(self.plan.nodes, self.plan.kind)
        self.sources = design.has_sources(self.plan.nodes, self.plan.kind)
        self.warmup: list[float] = []
        self.counts: dict[str, tuple[int, int]] = {}  # arm: collectives and bytes a step

    def prepare(self) -> None:
        """The prompt goes in; what F does is recorded for the interventions."""
        tokens = list(self.work.forced[: self.design.steps])
        answers = self.model.call("prepare", prompt=list(self.work.prompt), tokens=tokens)
        for rank, answer in enumerate(answers):
            if answer:
                self._check("F", rank, answer)

    def blocks(self, tick: Callable[[], None]) -> Iterator[list[Sample]]:
        """The samples of each block, warm-up blocks first."""
        for number in range(self.design.warmup_blocks):
            samples = self._block(number, warmup=True)
            self.warmup.append(self._step_us(samples))
            tick()
            yield samples
            if agree(self.warmup[-3:], WARMUP_TOLERANCE):
                break
        for number in range(self.design.blocks):
            yield self._block(number, warmup=False)
            tick()

    @property
    def stable(self) -> bool:
        """Whether the last three warm-up medians agree."""
        return agree(self.warmup[-3:], WARMUP_TOLERANCE)

    @property
    def warmup_spread(self) -> float:
        """max/min - 1 of the last three warm-up medians."""
        return spread(self.warmup[-3:]) if len(self.warmup) >= 2 else 0.0

    def _step_us(self, samples: list[Sample]) -> float:
        ranks = range(self.plan.nodes)
        plain = [s for s in samples if s.intervention == "P"]
        return max(median(s.step_us for s in plain if s.rank == rank) for rank in ranks)

    def _block(self, number: int, *, warmup: bool) -> list[Sample]:
        extra = (SOURCES,) if self.sources and not warmup else ()
        arms = ("P",) if warmup else (*self.arms, *extra)
        rows: list[Sample] = []
        for arm in order_of_arms(arms, self.number, number, self.design.seed):
            rows += self._source_rows(number) if arm == SOURCES else self._arm_rows(arm, number, warmup)
        return rows

    def _arm_rows(self, arm: str, block: int, warmup: bool) -> list[Sample]:
        ranks = range(self.plan.nodes)
        if arm == "A":
            answers = [self.model.call("arm", ranks=[rank], name=arm)[0] for rank in ranks]
        else:
            answers = self.model.call("arm", name=arm)
        rows = []
        for rank, answer in enumerate(answers):
            self._check(arm, rank, answer)
            segments = answer["segments_us"] or [None] * len(answer["step_us"])
            rows += [
                self._row(arm, block, warmup, step, rank, us, parts)
                for step, (us, parts) in enumerate(zip(answer["step_us"], segments, strict=True))
            ]
        return rows

    def _row(
        self, what: str, block: int, warmup: bool, step: int, rank: int, us: float, parts: Any = None
    ) -> Sample:
        return Sample(
            self.number, self.plan.nodes, self.plan.kind, what, block, warmup, step, rank, us, parts
        )

    def _check(self, arm: str, rank: int, answer: dict[str, Any]) -> None:
        """NotApplied when an intervention changed the work: other counts than the program, or NaN."""
        if not answer["finite"]:
            raise NotApplied(f"arm {arm} on rank {rank}", "keeps every value finite", "NaN or infinity")
        if answer["collectives"] is None:
            return
        steps = len(answer["step_us"])
        wanted = program_collectives(self.plan, self.model.weights.facts.layers)[rank]
        if answer["collectives"] != wanted * steps:
            got = f"{answer['collectives'] / steps:g}"
            raise NotApplied(f"arm {arm} on rank {rank}", f"meets {wanted} collectives a step", got)
        bytes_a_step = answer["bytes"] // steps
        self.counts[arm] = (wanted, max(bytes_a_step, self.counts.get(arm, (0, 0))[1]))

    def _source_rows(self, block: int) -> list[Sample]:
        """Second sources: pieces alone on each rank, pieces on all at once, the graph cut and the messages."""
        rows: list[Sample] = []
        for rank in range(self.plan.nodes):
            alone = self.model.call("time_pieces", ranks=[rank], together=False)[0]
            rows += [
                self._row(f"alone/{name}", block, False, 0, rank, us) for name, us in alone["pieces"].items()
            ]
        if self.plan.nodes == 1:
            return rows
        for rank, both in enumerate(self.model.call("time_pieces", together=True)):
            rows += [
                self._row(f"together/{name}", block, False, 0, rank, us)
                for name, us in both["pieces"].items()
            ]
            rows.append(
                self._row("together/segments", block, False, 0, rank, sum(both["segments"]), both["segments"])
            )
        for rank, link in enumerate(self.model.call("time_links")):
            rows += [self._row(f"link/{name}", block, False, 0, rank, us) for name, us in link.items()]
        return rows
