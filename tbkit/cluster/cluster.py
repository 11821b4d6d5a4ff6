"""A live cluster: its nodes, calls to their ranks, healing after a death, orderly closing."""

from __future__ import annotations

import atexit
import secrets
import signal
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tbkit.cluster import carriers
from tbkit.cluster.carriers import Carrier
from tbkit.cluster.engines import Engines
from tbkit.cluster.waiting import Call, gather
from tbkit.errors import ClusterError
from tbkit.fabric import Cabling
from tbkit.rank import supervisor
from tbkit.show import Shown

if TYPE_CHECKING:
    from tbkit.fabric.cards import Measurement

REPLY_DEADLINE_S = 60.0
JOIN_DEADLINE_S = 20.0
CHUNK_BYTES = 1 << 20

_open: weakref.WeakSet[Cluster] = weakref.WeakSet()


class Cluster(Shown):
    """Nodes with their engines and rank processes. Rank i of the world is node i, whatever its engine's id.

    ``reality`` is the word for what is real here (design.md 2): local engines are real engines on one machine.
    """

    def __init__(
        self, engines: Engines, folder: Path, policy: str = "auto", carrier: Carrier = "shm"
    ) -> None:
        self._engines, self._folder = engines, folder
        self.policy, self.carrier = policy, carrier
        self.reality = carriers.reality(carrier)
        self.nodes = list(engines.nodes)
        self.closed = False
        self._world_stands = self._active = False
        self.references: dict[Any, Any] = {}  # what one node answered, for the gate of later runs
        self.loaded: Any = None  # the ShardedModel whose shards the ranks hold now
        self.policy_resolved = policy
        _open.add(self)

    @property
    def size(self) -> int:
        """How many nodes."""
        return len(self.nodes)

    @property
    def client(self) -> Any:
        """The ipyparallel client."""
        return self._engines.client

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.reality
        return f"<Cluster: {self.size} nodes, {state}>"

    def begin(self, deadline_s: float) -> None:
        """Start a rank process on every engine and form the group of all nodes."""
        self._begin_ranks(self.nodes, deadline_s)
        self._join_world()

    def _begin_ranks(self, nodes: list[str], deadline_s: float) -> None:
        env, owner = self._engines.environment(), self._engines.owner()
        played = carriers.environment(self.carrier, self.nodes, self._folder.name)
        args = [
            (node, self.nodes.index(node), self.size, env | played.get(node, {}), owner) for node in nodes
        ]
        self._gather(nodes, supervisor.begin, args, deadline_s)

    def _join_world(self) -> None:
        self.policy_resolved = self.join(list(range(self.size)), world=True)[0]["policy"]
        self._world_stands = True

    def join(self, nodes: Sequence[int], *, world: bool = False) -> list[Any]:
        """Form a new fabric group of these nodes, in this order."""
        if (cabling := self.cabling(nodes)) is not None:
            return self._form(nodes, cabling, world)
        name = f"tbkit-{secrets.token_hex(6)}"
        args = [(name, i, len(nodes), JOIN_DEADLINE_S, self.policy, world) for i in range(len(nodes))]
        names = [self.nodes[i] for i in nodes]
        return self._gather(names, supervisor.join, args, JOIN_DEADLINE_S + 10)

    def cabling(self, nodes: Sequence[int] | None = None) -> Cabling | None:
        """The cables between these nodes (default all), ranks in this order; None where they share memory."""
        chosen = range(self.size) if nodes is None else nodes
        return carriers.cabling(self.carrier, self.nodes, chosen)

    def _form(self, nodes: Sequence[int], cabling: Cabling, world: bool) -> list[Any]:
        """A group over cables: this client gathers the ranks' cards and hands them round, twice."""
        shared = {"nodes": list(cabling.nodes), "cables": msgspec.to_builtins(cabling.cables), "world": world}
        made = [shared | {"rank": i} for i in range(len(nodes))]
        cards = self.ask(nodes, "mesh", made, deadline_s=JOIN_DEADLINE_S)
        step = {"cards": cards, "deadline_s": JOIN_DEADLINE_S}
        ready = self.ask(nodes, "connect", step, deadline_s=JOIN_DEADLINE_S + 5)
        args = {"cards": ready, "name": "-".join(cabling.nodes), "policy": self.policy}
        each = [(i, JOIN_DEADLINE_S, world, args) for i in range(len(nodes))]
        return self._gather([self.nodes[i] for i in nodes], supervisor.start, each, JOIN_DEADLINE_S + 10)

    def _gather(
        self,
        nodes: list[str],
        function: Callable[..., Any],
        args: list[Any],
        deadline_s: float,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Any]:
        if self.closed:
            raise ClusterError("cluster", "is open", "closed", "Connect again: tb.connect(local=2)")
        calls = [
            Call(node, self._engines.apply(node, function, *a)) for node, a in zip(nodes, args, strict=True)
        ]
        try:
            return gather(self._engines, calls, deadline_s, on_text)
        except Exception:
            self._world_stands, self.loaded = False, None
            raise

    def ask(
        self,
        nodes: Sequence[int],
        verb: str,
        args: Any = None,
        *,
        deadline_s: float = REPLY_DEADLINE_S,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Any]:
        """Ask the ranks of these nodes the same verb at once; ``args`` is one dict, or one a node.

        ``on_text`` gets what the first of them streams, as it comes. The first error that explains the
        others is raised, after all have answered or the deadline has passed.
        """
        each = args if isinstance(args, list) else [args or {}] * len(nodes)
        names = [self.nodes[i] for i in nodes]
        packed = [(verb, one, deadline_s) for one in each]
        return self._gather(names, supervisor.ask, packed, deadline_s + 10, on_text)

    def heal(self, say: Callable[[str], None] = print) -> None:
        """Replace what has died since the last call, under the same rank, and form the world group again."""
        for node in self.nodes:
            begun = time.monotonic()
            if what := self._replace(node):
                self._world_stands, self.loaded = False, None
                took_s = time.monotonic() - begun
                say(f"{node}: new {what} under rank {self.nodes.index(node)} in {took_s:.1f} s")
                if what == "engine" and self._active:
                    self.activate()
        if not self._world_stands or not all(seen["world"] for seen in self._watch(self.nodes)):
            self._join_world()

    def _replace(self, node: str) -> str:
        """Start again what is gone on a node: "engine", "rank process", or "" where all is up."""
        if not self._engines.alive(node):
            self._engines.replace(node, REPLY_DEADLINE_S)
            self._begin_ranks([node], REPLY_DEADLINE_S)
            return "engine"
        if not self._watch([node])[0]["alive"]:
            self.restart([self.nodes.index(node)])
            return "rank process"
        return ""

    def restart(self, nodes: Sequence[int], env: list[dict[str, str]] | None = None) -> None:
        """New rank processes on these nodes, with more environment variables; the world group must form again."""
        names = [self.nodes[i] for i in nodes]
        self._gather(names, supervisor.restart, [(e,) for e in env or [{}] * len(nodes)], REPLY_DEADLINE_S)
        self._world_stands = False

    def _watch(self, nodes: list[str]) -> list[dict[str, Any]]:
        return self._gather(nodes, supervisor.watch, [()] * len(nodes), REPLY_DEADLINE_S)

    def activate(self) -> None:
        """Register ``%px`` and its kin in this IPython for the engines, in rank order."""
        from IPython import get_ipython

        view = self.client[[self._engines.ids[node] for node in self.nodes]]
        view.block = True
        view.activate()
        if (shell := get_ipython()) is not None:
            # its progress is a widget, which a saved notebook shows as the text of its repr
            shell.magics_manager.registry["ParallelMagics"].progress_after_seconds = -1
        self._active = True

    def status(self) -> list[dict[str, Any]]:
        """One row a node: rank, state of engine and rank process, their pids."""
        rows = []
        for rank, node in enumerate(self.nodes):
            row: dict[str, Any] = {"node": node, "rank": rank, "reality": self.reality}
            if self.closed or not self._engines.alive(node):
                rows.append(
                    row | {"engine": "gone", "rank_process": "gone", "engine_pid": None, "rank_pid": None}
                )
                continue
            seen = self._watch([node])[0]
            alive = "up" if seen["alive"] else "gone"
            rows.append(
                row
                | {
                    "engine": "up",
                    "rank_process": alive,
                    "engine_pid": seen["engine_pid"],
                    "rank_pid": seen["rank_pid"],
                }
            )
        return rows

    def __str__(self) -> str:
        lines = [f"{self.size} nodes, {self.reality}, waiting policy {self.policy_resolved}"]
        for row in self.status():
            engine = f"engine {row['engine']} (pid {row['engine_pid']})"
            process = f"rank process {row['rank_process']} (pid {row['rank_pid']})"
            lines.append(f"  rank {row['rank']}  {row['node']}  {engine}, {process}")
        return "\n".join(lines)

    def fetch(self, node: int, path: str, deadline_s: float = REPLY_DEADLINE_S) -> bytes:
        """A file that a rank wrote, in pieces of 1 MiB."""
        pieces: list[bytes] = []
        while not pieces or len(pieces[-1]) == CHUNK_BYTES:
            args = {"path": path, "offset": len(pieces) * CHUNK_BYTES, "count": CHUNK_BYTES}
            pieces += self.ask([node], "read", args, deadline_s=deadline_s)
        return b"".join(pieces)

    def keep(self, name: str, text: str) -> str:
        """A small private file for the ranks, removed at close; its path."""
        path = self._folder / "files" / name
        path.write_text(text)
        return str(path)

    def links(self, what: str = "cards", **effort: Any) -> Measurement:
        """Measure the cables: cards of all, or one of the micro suite (:func:`tbkit.cluster.links.measure`)."""
        from tbkit.cluster.links import measure

        return measure(self, what, **effort)

    def close(self) -> list[str]:
        """Stop ranks, engines, nannies and controller in order; gives what had to be killed. Twice is harmless."""
        if self.closed:
            return []
        living = [node for node in self.nodes if self._engines.alive(node)]
        try:
            self._gather(living, supervisor.end, [()] * len(living), REPLY_DEADLINE_S)
        except ClusterError as error:
            left = [str(error)]
        else:
            left = []
        self.closed = True
        left += self._engines.stop()
        self._engines.remove_folder()
        return left

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    with suppress(
        ValueError
    ):  # only the main thread takes signals; a second SIGTERM must not cut the closing
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for cluster in list(_open):
        cluster.close()
