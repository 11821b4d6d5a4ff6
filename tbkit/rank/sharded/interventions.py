"""Interventions: the same step with its collectives changed on purpose (design.md 8, route A).

===  ==========================================================================================
P    the plain production step: the links themselves, nothing of this module
F    everything, counted and stamped
L    evaluated, crossed, and one element travels
C    evaluated and crossed at exactly the points of F; nothing travels
N    collectives are the identity, the graph is unbroken
A    as N, one rank at a time
===  ==========================================================================================

Each counts the collectives it met and the bytes that travelled. Where it cuts the graph it keeps, per
step, the time of each segment of computation between two cuts.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

if TYPE_CHECKING:
    from tbkit.fabric import Group


ARMS = ("P", "F", "L", "C", "N", "A")


class Observed:
    """The collectives of an arm, with their counts and the segments between them.

    ``eager`` says that each collective evaluates its value (F, L, C); ``group`` is None where nothing travels.
    """

    def __init__(self, rank: int, size: int, *, eager: bool, group: Group | None, whole: bool) -> None:
        self.rank, self.size = rank, size
        self.eager, self.group, self.whole = eager, group, whole
        self.one = np.zeros(1, dtype=np.float32)
        self.collectives, self.bytes = 0, 0
        self.segments_ns: list[int] = []
        self.left_ns = 0

    def begin(self) -> None:
        """A step starts now."""
        self.segments_ns = []
        self.left_ns = perf_counter_ns()

    def end(self) -> None:
        """The step's last segment ends now."""
        self.segments_ns.append(perf_counter_ns() - self.left_ns)

    def _cut(self, x: mx.array) -> None:
        """Evaluate and export the buffer, as every eager collective must; close the running segment."""
        self.collectives += 1
        if self.eager:
            mx.eval(x)
            memoryview(x)  # type: ignore[arg-type]  # an mlx array has the buffer protocol
            self.segments_ns.append(perf_counter_ns() - self.left_ns)

    def _resume(self) -> None:
        self.left_ns = perf_counter_ns()

    def _travels(self, x: mx.array) -> Any:
        """What is handed to the fabric: the value, or one element of it."""
        value = x if self.whole else self.one
        self.bytes += value.nbytes
        return value

    def all_reduce(self, x: mx.array) -> mx.array:
        self._cut(x)
        if self.group is not None:
            value = self._travels(x)
            self.group.all_reduce(value, out=value)
        self._resume()
        return x

    def all_gather(self, x: mx.array) -> mx.array:
        self._cut(x)
        gathered: mx.array | None = None
        if self.group is not None:
            gathered = self.group.all_gather(self._travels(x))
        self._resume()
        return gathered if self.whole and gathered is not None else mx.stack([x] * self.size)

    def send(self, x: mx.array, to: int) -> None:
        self._cut(x)
        if self.group is not None:
            self.group.send(self._travels(x), to)
        self._resume()

    def recv(self, like: mx.array, source: int) -> mx.array:
        self._cut(like)
        if self.group is not None:
            self.group.recv(self._travels(like), source)
        self._resume()
        return like

    def broadcast(self, x: mx.array, root: int) -> mx.array:
        self._cut(x)
        if self.group is not None:
            self.group.broadcast(self._travels(x), root)
        self._resume()
        return x

    def barrier(self) -> None:
        if self.group is not None:
            self.group.barrier()


def links_of(arm: str, group: Group) -> Observed:
    """The collectives of an arm other than P."""
    travels = group if arm in ("F", "L") else None
    return Observed(group.rank, group.size, eager=arm in ("F", "L", "C"), group=travels, whole=arm == "F")


class Reentry(nn.Module):
    """A decoder layer whose input is the recorded one, so that no arm changes the values the work is done on.

    The input that was computed stays a dependency: it is done, then put aside.
    """

    def __init__(self, layer: Any, tape: Tape, place: int) -> None:
        super().__init__()
        self._layer, self._tape, self._place = layer, tape, place
        self.use_sliding = getattr(layer, "use_sliding", False)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        return self._layer(self._tape.enter(self._place, x), mask, cache=cache)


class Tape:
    """The hidden states at each layer's entry, step by step: recorded once in F, replayed in every arm."""

    def __init__(self) -> None:
        self.states: list[dict[int, mx.array]] = []
        self.recording = False
        self.at = 0

    def enter(self, place: int, x: mx.array) -> mx.array:
        """Record x, or hand out what was recorded with x as its dependency."""
        if self.recording:
            self.states[self.at][place] = mx.array(x)
            return x
        recorded: mx.array = mx.depends(self.states[self.at][place], x)
        return recorded

    def start(self, step: int) -> None:
        """The step with this index begins."""
        self.at = step
        if self.recording:
            self.states.append({})

    def finish(self) -> None:
        """Evaluate what the running step recorded."""
        if self.recording:
            mx.eval(list(self.states[self.at].values()))
