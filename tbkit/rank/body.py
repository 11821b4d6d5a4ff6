"""What a rank process can be asked to do: one method a verb, plain data in and out."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tbkit import fabric
from tbkit.errors import ClusterError, FabricError, TbkitError, UsageError


class Body:
    """The state of a rank process: its groups, its shard, its bench. Verbs are the ``do_*`` methods."""

    def __init__(self, node: str, scratch: Any, stream: Callable[[str], None]) -> None:
        self.node, self.scratch, self.stream = node, scratch, stream
        self.world: fabric.Group | None = None
        self.group: fabric.Group | None = None
        self.mesh: fabric.Mesh | None = None
        self.model: Any = None

    def do(self, verb: str, args: dict[str, Any]) -> Any:
        """Run a verb; UsageError when there is none of that name."""
        method = getattr(self, f"do_{verb}", None)
        if method is None:
            raise UsageError("rank process", "knows the verb it is asked for", verb)
        return method(**args)

    def do_ping(self) -> dict[str, Any]:
        """Who is there."""
        return {
            "node": self.node,
            "pid": os.getpid(),
            "maxrss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }

    def do_join(
        self, name: str, rank: int, size: int, deadline_s: float, policy: fabric.Policy, world: bool
    ) -> dict[str, Any]:
        """Form a group: of all nodes (``world``), or of the nodes of one load."""
        self._leave(world)
        return self._take(fabric.join(name, rank, size, deadline_s=deadline_s, policy=policy), world)

    def do_mesh(self, nodes: list[str], cables: list[dict[str, Any]], rank: int, world: bool) -> bytes:
        """First step of a group over cables: this rank's part of the mesh; gives its first card."""
        self._leave(world)
        self._drop_mesh()
        self.mesh = fabric.Mesh(fabric.Cabling(nodes, msgspec.convert(cables, list[fabric.Cable])), rank)
        return self.mesh.card

    def do_connect(self, cards: Sequence[bytes], deadline_s: float) -> bytes:
        """Second step: connect to the others by their first cards; gives this rank's second card."""
        mesh = self._mesh()
        try:
            mesh.connect(cards, deadline_s)
            return mesh.card
        except BaseException:
            self._drop_mesh()
            raise

    def do_start(
        self, cards: Sequence[bytes], name: str, deadline_s: float, policy: fabric.Policy, world: bool
    ) -> dict[str, Any]:
        """Third step: from the second cards, the group. It owns the mesh from now on."""
        mesh = self._mesh()
        try:
            mesh.start(cards)
            group = mesh.group(name, deadline_s, policy)
        except BaseException:
            self._drop_mesh()
            raise
        self.mesh = None
        return self._take(group, world)

    def _leave(self, world: bool) -> None:
        old = self.world if world else self.group
        if old is not None:
            old.close()

    def _take(self, group: fabric.Group, world: bool) -> dict[str, Any]:
        if world:
            self.world = group
        else:
            self.group = group
        return {"policy": group.policy_resolved, "segment": group.segment_path}

    def _mesh(self) -> fabric.Mesh:
        if self.mesh is None:
            raise ClusterError(
                f"{self.node}: mesh", "is made before it is connected", "none", "Call cl.heal()"
            )
        return self.mesh

    def _drop_mesh(self) -> None:
        if self.mesh is not None:
            self.mesh.close()
        self.mesh = None

    def _world(self) -> fabric.Group:
        if self.world is None:
            raise ClusterError(f"{self.node}: fabric", "has a group of all nodes", "none", "Call cl.heal()")
        return self.world

    def do_collective(
        self, name: str, shape: list[int], dtype: str, deadline_s: float, options: dict[str, Any]
    ) -> Any:
        """A collective of the engine's handle, on the array in the shared scratch; gives the result's shape."""
        group = self._world()
        try:
            return self._collective(group, name, shape, dtype, deadline_s, options)
        except FabricError as error:
            if type(error) is not FabricError:  # a fault of this very call says what it is
                raise
            remedy = "Call cl.heal() to form a new one"
            raise FabricError(
                f"{self.node}: fabric", "has a group that no fault has ended", error.got, remedy
            ) from error

    def _collective(
        self,
        group: fabric.Group,
        name: str,
        shape: list[int],
        dtype: str,
        deadline_s: float,
        options: dict[str, Any],
    ) -> Any:
        if name == "barrier":
            group.barrier(deadline_s=deadline_s)
            return None
        array = self.scratch.array(shape, dtype)
        kind = "bfloat16" if dtype == "bfloat16" else None
        call = getattr(group, name)
        if name == "all_reduce":
            call(array, out=array, dtype=kind, deadline_s=deadline_s, **options)
            return list(shape)
        if name == "all_gather":
            gathered = call(array, deadline_s=deadline_s)
            self.scratch.array(gathered.shape, dtype)[...] = gathered
            return list(gathered.shape)
        call(array, deadline_s=deadline_s, **options)
        return list(shape)

    def do_measure(self, loop: str, **args: Any) -> dict[str, Any]:
        """A timing loop over the group of all nodes (``tbkit.fabric.cards.probe``); its raw samples."""
        from tbkit.fabric.cards import probe

        return probe.LOOPS[loop](self._world(), **args)

    def do_crossing(self, **args: Any) -> dict[str, Any]:
        """Chains of products, whole and cut, on this node alone: where they ran, and the raw samples."""
        from tbkit.fabric.cards.crossing import crossing, device

        return {"device": device(), "samples": crossing(**args)}

    def do_load(self, **args: Any) -> dict[str, Any]:
        """Load the shard of a plan (see :class:`tbkit.rank.sharded.calls.Sharded`)."""
        from tbkit.rank.sharded.calls import Sharded

        self.model = None
        self.model = Sharded(group=self.group, stream=self.stream, **args)
        report: dict[str, Any] = self.model.report()
        return report

    def do_unload(self) -> None:
        """Drop the shard."""
        self.model = None

    def do_model(self, call: str, **args: Any) -> Any:
        """A call of the loaded shard."""
        if self.model is None:
            raise ClusterError(
                f"{self.node}: model", "is loaded before it is used", "none", "Call tb.shard first"
            )
        return getattr(self.model, call)(**args)

    def do_read(self, path: str, offset: int, count: int) -> bytes:
        """A piece of a file that this rank wrote."""
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(count)

    def do_discard(self, path: str) -> None:
        """Delete a file that this rank wrote."""
        Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the groups in order."""
        self._drop_mesh()
        for group in (self.group, self.world):
            if group is not None:
                group.close()


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data; what is not ours becomes a ClusterError with the traceback's last place."""
    if isinstance(error, TbkitError):
        return error.to_dict()
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else "unknown place"
    return ClusterError(
        "rank process", "finishes what it is asked", f"{type(error).__name__}: {error} at {where}"
    ).to_dict()
