"""The collectives a shard calls, with two back ends: the fabric (eager) and MLX's ring (in the graph)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx

if TYPE_CHECKING:
    from tbkit.fabric import Group


class Collectives(Protocol):
    """What a sharded forward pass needs from its links."""

    rank: int
    size: int

    def all_reduce(self, x: mx.array) -> mx.array:
        """The sum of x over the ranks, same shape."""
        ...

    def all_gather(self, x: mx.array) -> mx.array:
        """The x of every rank, shape (size, *x.shape)."""
        ...

    def send(self, x: mx.array, to: int) -> None:
        """Hand x to a rank; complete on return."""
        ...

    def recv(self, like: mx.array, source: int) -> mx.array:
        """An array of the shape and type of ``like`` from a rank."""
        ...

    def broadcast(self, x: mx.array, root: int) -> mx.array:
        """The x of ``root`` on every rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come."""
        ...


class Alone:
    """The links of a single node: every collective is the identity."""

    rank, size = 0, 1

    def all_reduce(self, x: mx.array) -> mx.array:
        return x

    def all_gather(self, x: mx.array) -> mx.array:
        return x[None]

    def send(self, x: mx.array, to: int) -> None:
        """Never called: a single node has no peer."""

    def recv(self, like: mx.array, source: int) -> mx.array:  # noqa: ARG002
        return like

    def broadcast(self, x: mx.array, root: int) -> mx.array:  # noqa: ARG002
        return x

    def barrier(self) -> None:
        """Nothing to wait for."""


class FabricLinks:
    """Collectives over a fabric group. Eager: the value is evaluated, then reduced in place in its own buffer.

    The buffer is the fresh output of the layer before, owned by this operation alone.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank, self.size = group.rank, group.size

    def all_reduce(self, x: mx.array) -> mx.array:
        mx.eval(x)
        self.group.all_reduce(x, out=x)
        return x

    def all_gather(self, x: mx.array) -> mx.array:
        mx.eval(x)
        gathered: mx.array = self.group.all_gather(x)
        return gathered

    def send(self, x: mx.array, to: int) -> None:
        mx.eval(x)
        self.group.send(x, to)

    def recv(self, like: mx.array, source: int) -> mx.array:
        out = mx.zeros_like(like)
        mx.eval(out)
        self.group.recv(out, source)
        return out

    def broadcast(self, x: mx.array, root: int) -> mx.array:
        mx.eval(x)
        self.group.broadcast(x, root)
        return x

    def barrier(self) -> None:
        self.group.barrier()


class RingLinks:
    """Collectives of ``mx.distributed``: lazy, inside the graph, on the CPU stream."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()

    def all_reduce(self, x: mx.array) -> mx.array:
        return mx.distributed.all_sum(x, group=self.group, stream=mx.cpu)

    def all_gather(self, x: mx.array) -> mx.array:
        return mx.distributed.all_gather(x[None], group=self.group, stream=mx.cpu)

    def send(self, x: mx.array, to: int) -> None:
        mx.eval(mx.distributed.send(x, to, group=self.group, stream=mx.cpu))

    def recv(self, like: mx.array, source: int) -> mx.array:
        return mx.distributed.recv_like(like, source, group=self.group, stream=mx.cpu)

    def broadcast(self, x: mx.array, root: int) -> mx.array:
        return mx.distributed.all_gather(x[None], group=self.group, stream=mx.cpu)[root]

    def barrier(self) -> None:
        mx.eval(mx.distributed.all_sum(mx.zeros(1), group=self.group, stream=mx.cpu))
