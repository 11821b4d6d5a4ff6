"""A rank's end of a group. The calls that move data are the compiled module's own, one call deep."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from tbkit import _kernels
from tbkit.errors import FabricError
from tbkit.fabric.shape import LinkShape, Pair, Shape, on_one_node, rows
from tbkit.fabric.window import Window

Policy = Literal["auto", "spin", "yield", "futex"]
Samples = npt.NDArray[np.float64]
Stamps = npt.NDArray[np.int64]

_open_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@dataclass(frozen=True)
class Count:
    """Finished operations of one kind, and this rank's payload in them, in bytes."""

    calls: int
    bytes: int


@dataclass(frozen=True)
class RankFacts:
    """What the shared segment says of a rank. Times are of ``time.monotonic_ns``; 0 is never.

    ``operation`` is the one in progress, or the last one where ``done``; ``sequence`` counts a rank's
    operations, ``collectives`` those that all ranks take part in; ``peer`` is the other rank, None for a
    collective.
    """

    rank: int
    state: str
    pid: int
    operation: str
    peer: int | None
    done: bool
    sequence: int
    collectives: int
    start_ns: int
    heartbeat_ns: int

    def __str__(self) -> str:
        towards = f" with rank {self.peer}" if self.peer is not None else ""
        state = "done" if self.done else "waiting"
        return f"rank {self.rank}: {self.operation} number {self.sequence}{towards}, {state}"


def bits(ranks: Iterable[int]) -> int:
    """The set of ranks as an integer with those bits set."""
    return sum(1 << rank for rank in set(ranks))


class Group(_kernels.Group):
    """A joined group of 1 to 16 ranks, over shared memory on a node and a mesh between nodes.

    Made by :func:`join` on one node, by :func:`~tbkit.fabric.form` over several. ``all_reduce``,
    ``all_gather``, ``broadcast``, ``send``, ``recv`` and ``barrier`` are described in ``_kernels.pyi``. Every wait
    ends at ``deadline_s`` (seconds; the group's, or the call's). The first fault ends the group: later calls raise
    :class:`~tbkit.errors.FabricError` at once on every rank.

    Raises (all of :mod:`tbkit.errors`, with ``facts`` peer, operation, sequence, elapsed_s, absent):
        PeerDied: the process of a peer is gone, or it closed the group.
        PeerSilent: nothing is heard of a peer on another node; names node and cable.
        FabricTimeout: a peer did not come in time; ``absent`` names the ranks.
        CorruptFrame: a frame is damaged, or the ranks did not call the same operation.
        Interrupted: :meth:`interrupt` was called on some rank.
        BufferRejected: an array that is not dense, not writable, or of another type.
    """

    policy: Policy
    shapes: dict[Pair, LinkShape]  # of the links that are shaped, by pair of ranks, the lower first

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        deadline_s: float = 30.0,
        policy: Policy = "auto",
        shape: Shape | None = None,
    ) -> None:
        self.shapes = on_one_node(shape, size)
        super().__init__(name, rank, size, deadline_s, policy, rows(self.shapes))
        self.policy = policy
        _open_groups.add(self)

    @classmethod
    def over(
        cls,
        mesh: _kernels.Mesh,
        name: str,
        deadline_s: float,
        policy: Policy,
        shapes: dict[Pair, LinkShape] | None = None,
    ) -> Self:
        """The group over a mesh that has been started; the mesh is the group's from now on."""
        group = cls.__new__(cls)
        group.shapes = shapes or {}
        _kernels.Group.__init__(group, mesh, name, deadline_s, policy, rows(group.shapes))
        group.policy = policy
        _open_groups.add(group)
        return group

    @property
    def policy_resolved(self) -> str:
        """How waits go: ``spin``, ``yield``, ``futex``, or for ``auto`` what the occupancy made of it."""
        if self.policy != "auto":
            return self.policy
        return "auto: yield (oversubscribed)" if self.oversubscribed else "auto: spin (free cores)"

    @property
    def segment_path(self) -> str:
        """A path by which another process of this node and user can :func:`observe` the unlinked segment
        (Linux)."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @property
    def counts(self) -> dict[str, Count]:
        """Finished operations so far by name; operations never called are left out."""
        return {name: Count(**count) for name, count in self.raw_counts.items()}

    @property
    def last_operation(self) -> RankFacts:
        """This rank's operation in progress, or its last one."""
        return self.facts_of(self.rank)

    def facts_of(self, rank: int) -> RankFacts:
        """State, last operation and heartbeat of a rank of the group."""
        return RankFacts(rank=rank, **self.rank_facts(rank))

    def interrupt(self, ranks: Iterable[int] | None = None) -> None:
        """End the present or next wait of ``ranks`` (default all) with Interrupted. Callable from any
        thread."""
        self.interrupt_bits(bits(range(self.size) if ranks is None else ranks))

    def pingpong(self, peer: int, bytes: int, iterations: int, *, deadline_s: float | None = None) -> Samples:
        """One-way times in µs, shape (iterations,), of messages of ``bytes``: half of each round trip. Both
        call it."""
        samples = np.empty(iterations)
        self.fill_pingpong(peer, bytes, samples, deadline_s)
        return samples

    def bare_pingpong(self, peer: int, iterations: int, *, deadline_s: float | None = None) -> Samples:
        """The same over one shared cache line, without frames, credits and deadline: what :meth:`pingpong` is
        held to."""
        samples = np.empty(iterations)
        self.fill_bare_pingpong(peer, samples, deadline_s)
        return samples

    def window(
        self, peer: int, bytes: int, count: int, iterations: int, *, deadline_s: float | None = None
    ) -> Samples:
        """Times in µs, shape (iterations,), of ``count`` messages of ``bytes`` from the lower rank, answered
        once."""
        samples = np.empty(iterations)
        self.fill_window(peer, bytes, count, samples, deadline_s)
        return samples

    def clock_stamps(
        self, peer: int, exchanges: int, *, pause_us: float = 0.0, deadline_s: float | None = None
    ) -> Stamps:
        """Clock readings in ns, shape (exchanges, 4): the lower rank sends, the other receives, the other
        answers, the lower receives, each by its own clock. Exchanges are ``pause_us`` apart; both ranks call and
        get all."""
        stamps = np.zeros((exchanges, 4), np.int64)
        self.fill_clock(peer, pause_us * 1e-6, stamps, deadline_s)
        return stamps

    def expose(self, array: Any = None, *, deadline_s: float | None = None) -> Window:
        """A :class:`~tbkit.fabric.Window` on ``array``, which every rank may then read; all ranks call it."""
        return Window(self, array, deadline_s=deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", shaped" if self.shapes else ""
        state += "" if self.is_open else ", closed"
        return f"Group({self.name!r}, rank {self.rank} of {self.size}, {self.policy_resolved}{state})"


def join(
    name: str,
    rank: int,
    size: int,
    deadline_s: float = 30.0,
    policy: Policy = "auto",
    shape: Shape | None = None,
) -> Group:
    """Join the group ``name`` on this node and wait until all ``size`` ranks have.

    ``deadline_s`` bounds the join and is the default of every later call, in seconds. ``policy`` says how
    waits go: ``spin``, ``yield``, ``futex``, or ``auto`` by occupancy. The name must be new; once all have
    joined it is gone. ``shape``: of all links, or by pair of ranks; the same on every rank.

    Raises FabricTimeout with the ranks that did not come, FabricError where the name or rank is taken, shared
    memory is full or the ranks' shapes differ, UsageError for a rank, size or shape that cannot be.
    """
    return Group(name, rank, size, deadline_s, policy, shape)


@atexit.register
def _leave_all() -> None:
    """Peers then read of an orderly leave, not of a death."""
    for group in list(_open_groups):
        with suppress(FabricError):  # a thread still waits in it: the system closes it with the process
            group.close()
