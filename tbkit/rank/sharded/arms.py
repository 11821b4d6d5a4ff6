"""Running an arm on a loaded shard: teacher-forced steps from a kept context, every step timed."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from tbkit.rank.sharded.collectives import Collectives
from tbkit.rank.sharded.interventions import Observed, Reentry, Tape, links_of
from tbkit.rank.sharded.shard import Shard

if TYPE_CHECKING:
    from tbkit.fabric import Group


class Bench:
    """A shard with a prompt in its caches and the tokens that every arm is forced to take."""

    def __init__(
        self, shard: Shard, links: Collectives, group: Group | None, context: int, tokens: list[int]
    ) -> None:
        self.shard, self.links, self.group = shard, links, group
        self.context, self.tokens = context, tokens
        self.tape = Tape()
        self.plain = list(shard.layers)
        self.wrapped = [Reentry(layer, self.tape, i) for i, layer in enumerate(self.plain)]

    def record(self) -> dict[str, Any]:
        """One pass of F that keeps the hidden states at each layer's entry."""
        self.tape.states, self.tape.recording = [], True
        try:
            return self.run("F")
        finally:
            self.tape.recording = False

    def run(self, arm: str) -> dict[str, Any]:
        """The steps of an arm: ``step_us`` and ``segments_us`` a step, collectives and bytes in all, ``finite``."""
        observed = None if arm == "P" or self.group is None else links_of(arm, self.group)
        self.shard.forget(self.context)
        self.shard.wire.set(observed or self.links)
        self.shard.model.model.layers = self.wrapped if observed else self.plain
        try:
            if arm != "A":
                self.links.barrier()
            return self._steps(arm, observed)
        finally:
            self.shard.wire.set(self.links)
            self.shard.model.model.layers = self.plain

    def _steps(self, arm: str, observed: Observed | None) -> dict[str, Any]:
        step_us, segments_us = [], []
        out = mx.zeros(1)
        for index, token in enumerate(self.tokens):
            begun = perf_counter_ns()
            if observed:
                self.tape.start(index)
                observed.begin()
            _, out = self.shard.step(token)
            if observed:
                observed.end()
            step_us.append((perf_counter_ns() - begun) / 1e3)
            if observed:
                self.tape.finish()
                segments_us.append([ns / 1e3 for ns in observed.segments_ns])
        return {
            "arm": arm,
            "step_us": step_us,
            "segments_us": segments_us,
            "collectives": observed.collectives if observed else None,
            "bytes": observed.bytes if observed else None,
            "finite": bool(mx.isfinite(out).all().item()),
        }
