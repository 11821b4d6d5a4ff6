"""Reading another rank's memory: a window that all ranks open together, and that any of them reads at any time.

There is no RDMA READ on these machines, so a read is a request and its reply. A thread of the owner answers, in C and
without the interpreter's lock: also while the owner computes in Python, holds the lock, or waits in a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from tbkit import _kernels
from tbkit.errors import UsageError
from tbkit.fabric.arrays import registered
from tbkit.stats import median

if TYPE_CHECKING:
    from tbkit.fabric.group import Group

WindowCarrier = Literal["self", "local", "tcp", "relay"]
SIZES = tuple(4096 << k for k in range(0, 15, 2))  # 4 KiB to 64 MiB


@dataclass(frozen=True)
class ReadTimes:
    """What reads of several sizes took, from request to the last byte in place: raw, µs, by length in bytes."""

    rank: int
    carrier: WindowCarrier
    times_us: dict[int, npt.NDArray[np.float64]]

    def bandwidth_bytes_per_s(self) -> dict[int, float]:
        """Length over the median time, by length; what one read at a time gets."""
        return {length: length / median(times) * 1e6 for length, times in self.times_us.items()}


class Window(_kernels.Window):
    """Memory of every rank of a group that all its ranks may read; all call ``Window(group, array)`` together.

    ``array`` is dense, with the buffer protocol (numpy, mlx); None, or one of 0 bytes, exposes nothing. It is held
    until :meth:`close`: numpy does not resize it, and its memory is not freed. An mlx array is a value: what is
    assigned to it later makes another one, and the window goes on showing the first. A write to a numpy array is
    seen by reads that come after it; a read during the write may see a part.

    Reads may come from several threads of a rank at once. One that fails is its caller's matter: group and window
    go on. The thread that serves sleeps while nothing is asked: a read's latency holds three wake-ups of a thread.

    Between nodes reads travel as frames with CRC-32C on a stream of their own over the pair's first cable, from its
    addresses, whatever carries the collectives: queue pairs are few (three a port may be all), so none is taken for
    reads. Ranks of one node have a local socket. :meth:`carrier` tells which.

    Raises LinkFailed, on all ranks, where one cannot serve; the errors of a collective where a rank does not come.
    """

    group: Group

    def __init__(self, group: Group, array: Any = None, *, deadline_s: float | None = None) -> None:
        super().__init__(group, None if array is None else registered(array), deadline_s)
        self.group = group

    @property
    def bytes_by_rank(self) -> tuple[int, ...]:
        """How many bytes each rank exposes."""
        return tuple(self.bytes_of(rank) for rank in range(self.group.size))

    def carrier(self, rank: int) -> WindowCarrier:
        """What reads of a rank go over: ``self``, own memory; ``local``, a socket on this node; ``tcp``, a stream
        over the cable, beside queue pairs too; ``relay``, streams over the node between."""
        return cast(WindowCarrier, super().carrier(rank))

    def read(
        self, rank: int, offset: int, length: int, out: Any = None, *, deadline_s: float | None = None
    ) -> Any:
        """``length`` bytes from ``offset`` on of what ``rank`` exposes: a new uint8 array, or ``out``.

        ``out`` is dense and writable, of ``length`` bytes. The read ends at ``deadline_s`` (seconds; the group's).
        After an error ``out`` holds what had come until then.

        Raises:
            UsageError: a block that is not within what the rank exposes, or a rank that exposes nothing.
            FabricError: the window is closed, here or by its owner.
            FabricTimeout: no answer in time; names node and cable.
            PeerSilent: nothing is heard of the owner's node; names node and cable.
            PeerDied: the owner's process ended, or left the group.
            CorruptFrame: a frame was damaged: no more reads of that rank in this group.
            Interrupted: the group's ``interrupt`` was called for this rank.
            BufferRejected: an ``out`` that is not dense, not writable or of another size.
        """
        self._check(rank, offset, length)
        target = np.empty(length, np.uint8) if out is None else out
        return self.read_into(rank, offset, length, target, deadline_s)

    def times(
        self,
        rank: int,
        sizes: Sequence[int] = SIZES,
        iterations: int = 20,
        *,
        deadline_s: float | None = None,
    ) -> ReadTimes:
        """Read from ``rank`` in each of ``sizes`` (bytes; those that it exposes), one after the other, each
        ``iterations`` times after a first that does not count. ``deadline_s`` bounds each read."""
        times_us = {}
        for length in [size for size in sizes if size <= self.bytes_of(rank)]:
            out, samples = np.empty(length, np.uint8), np.empty(iterations + 1)
            self.fill_times(rank, 0, out, samples, deadline_s)
            times_us[length] = samples[1:]
        return ReadTimes(rank, self.carrier(rank), times_us)

    def close(self, *, deadline_s: float | None = None) -> None:
        """Expose no more, and let the array go; a second call does nothing. Each rank closes when it likes.

        Replies under way are finished, for at most ``deadline_s`` seconds (the group's); later requests, and what
        is not done by then, are refused. A barrier before it makes sure that all have read.
        """
        self.close_by(deadline_s)

    def _check(self, rank: int, offset: int, length: int) -> None:
        exposed = self.bytes_of(rank)
        if offset < 0 or length < 0 or exposed == 0 or offset + length > exposed:
            rule = f"a block within the {exposed} bytes that it exposes" if exposed else "something exposed"
            got = f"{length} bytes at {offset}" if exposed else "a rank that exposes nothing"
            raise UsageError(f"read of rank {rank}", rule, got)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self.is_open else ", closed"
        return f"Window({self.group.name!r}, bytes by rank {list(self.bytes_by_rank)}{state})"
