"""Watching a group from a process that is no rank of it, such as the ranks' supervisor."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Self

from tbkit import _kernels
from tbkit.errors import UsageError
from tbkit.fabric.group import RankFacts, bits


class Observer(_kernels.Observer):
    """A mapping of a group's segment that counts as no rank. It outlives the ranks: close it when done."""

    def ranks(self) -> list[RankFacts]:
        """State, last operation and heartbeat of every rank, in rank order."""
        return [RankFacts(rank=rank, **self.rank_facts(rank)) for rank in range(self.size)]

    def interrupt(self, ranks: Iterable[int] | None = None) -> None:
        """End the present or next wait of ``ranks`` (default all) with Interrupted."""
        self.interrupt_bits(bits(range(self.size) if ranks is None else ranks))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()


def observe(source: str | int, size: int | None = None, deadline_s: float = 10.0) -> Observer:
    """Attach to a group as an observer.

    ``source`` is the group's name, with ``size`` before any rank has joined (the segment is then made here,
    and the observer misses nothing), without it while the ranks join, for at most ``deadline_s`` seconds; or
    a descriptor, or a rank's ``segment_path``, at any time. Raises FabricError where there is no such
    segment.
    """
    if isinstance(source, int):
        return Observer(os.dup(source))
    if source.startswith("/proc/"):
        return Observer(os.open(source, os.O_RDWR | os.O_CLOEXEC))
    if size is not None and not 1 <= size <= 16:
        raise UsageError("observe", "a group has 1 to 16 ranks", str(size))
    return Observer(source, size or 0, deadline_s)


def discard(name: str) -> None:
    """Remove the name of a group whose ranks all died while joining; no error where there is none."""
    _kernels.discard(name)
