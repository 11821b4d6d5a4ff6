"""The rack: nodes in full mesh, a cable and a soft-RoCE device for each pair, and the faults that befall them.

``with Rack(4) as rack:`` boots nodes 1 to 4; ``rack.node(k)`` runs programs, and the device on node k that faces
node p is ``rdma_enP``. Nothing has a name in the file system but the consoles, ``build/rack/node-K.log``.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from itertools import combinations
from pathlib import Path
from types import TracebackType

from tests.rack.images import images
from tests.rack.node import End, Node

READY_S = 150.0
COMMAND_S = 20.0


class Socket:
    """A listening unix socket that only this process can connect to: its name is gone at once."""

    def __init__(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        with tempfile.TemporaryDirectory(prefix="tbkit-cable-") as folder:
            name = str(Path(folder) / "cable")
            self.listener.bind(name)
            self._inode = os.open(name, os.O_PATH)
        self.listener.listen(1)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(f"/proc/self/fd/{self._inode}")
        return connection

    def close(self) -> None:
        self.listener.close()
        os.close(self._inode)


class Rack:
    """``size`` nodes, ready. images.Missing where this machine cannot have them; RackError if one does not come up.

    Start it from the main thread: a node lives only as long as the thread that started it. Two ``processors`` let
    two programs inside one node spin at once; more of them than the host has cores gain nothing.
    """

    def __init__(self, size: int, processors: int = 1) -> None:
        self.numbers, self._processors = tuple(range(1, size + 1)), processors
        self._images = images()
        self._nodes: dict[int, Node] = {}
        self._sockets: dict[tuple[int, int], Socket] = {}
        self._frozen: set[int] = set()
        self._pulled: set[tuple[int, int]] = set()
        self._losing: set[tuple[int, int]] = set()
        try:
            self._boot(1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Rack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def node(self, number: int) -> Node:
        """Node ``number``, from 1."""
        return self._nodes[number]

    def device(self, number: int, peer: int) -> str:
        """The RDMA device on node ``number`` whose cable leads to ``peer``."""
        assert number != peer
        return f"rdma_en{peer}"

    def address(self, number: int, peer: int) -> str:
        """The IPv4 address of node ``number`` on its cable to ``peer``; its GID is ``::ffff:`` and this."""
        low, high = sorted((number, peer))
        return f"10.{low}.{high}.{number}"

    def pull(self, a: int, b: int) -> None:
        """Pull the cable between two nodes: both ports go down, what was on the way is lost."""
        self._set_cable(a, b, up=False)
        self._pulled.add(_pair(a, b))

    def plug(self, a: int, b: int) -> None:
        """Plug it in again."""
        self._set_cable(a, b, up=True)
        self._pulled.discard(_pair(a, b))

    def lose(self, a: int, b: int, percent: float) -> None:
        """Let the cable lose this share of its packets in each direction; 0 makes it whole again.

        The loss is in the nodes' own queues (netem), so it is a number, unlike the drops of a UDP cable.
        """
        for node, peer in ((a, b), (b, a)):
            rule = f"replace dev en{peer} root netem limit 100000 loss {percent}%"
            command = f"tc qdisc {rule if percent else f'del dev en{peer} root'}"
            self.node(node).run(command, COMMAND_S).check_returncode()
        (self._losing.add if percent else self._losing.discard)(_pair(a, b))

    def freeze(self, number: int) -> None:
        """Stop the node's processor: it keeps its state and says nothing (SIGSTOP of qemu)."""
        self.node(number).freeze()
        self._frozen.add(number)

    def thaw(self, number: int) -> None:
        """Let it go on."""
        self.node(number).thaw()
        self._frozen.discard(number)

    def kill(self, number: int) -> None:
        """End the node as a power cut does. ``restore`` boots it again."""
        self.node(number).close()
        self._frozen.discard(number)

    def restore(self) -> None:
        """Make the rack whole: thawed, plugged, without loss, no program left from before, every node alive.

        Only the lower node's end of a cable can be connected to again, so a killed node takes the higher ones
        with it into the new boot: kill the last node where any will do.
        """
        for number in list(self._frozen):
            self.thaw(number)
        dead = [number for number in self.numbers if not self.node(number).alive]
        if dead:
            self._boot(min(dead))
        for pair in list(self._losing):
            self.lose(*pair, percent=0)
        for pair in list(self._pulled):
            self.plug(*pair)
        for number in self.numbers:
            self.node(number).end_programs()

    def close(self) -> None:
        """End every node."""
        for node in self._nodes.values():
            node.close()
        for listening in self._sockets.values():
            listening.close()
        self._sockets.clear()

    def _boot(self, first: int) -> None:
        """Boot node ``first`` and all above it, in parallel."""
        anew = [number for number in self.numbers if number >= first]
        for number in anew:
            if number in self._nodes:
                self.node(number).close()
        for low, high in combinations(self.numbers, 2):
            if low >= first:
                if old := self._sockets.pop((low, high), None):
                    old.close()
                self._sockets[low, high] = Socket()
        for pairs in (self._pulled, self._losing):
            pairs -= {pair for pair in pairs if pair[0] >= first}
        for number in anew:
            self._nodes[number] = Node(number, self._ends(number), self._images, self._processors)
        deadline = time.monotonic() + READY_S
        for number in anew:
            self.node(number).await_ready(deadline)

    def _ends(self, number: int) -> dict[int, End]:
        """The node's end of each of its cables: the lower node listens, the higher one connects."""
        ends = {}
        for peer in self.numbers:
            if peer > number:
                ends[peer] = End(self._sockets[number, peer].listener, True)
            elif peer < number:
                ends[peer] = End(self._sockets[peer, number].connect(), False)
        return ends

    def _set_cable(self, a: int, b: int, up: bool) -> None:
        for node, peer in ((a, b), (b, a)):
            if self.node(node).alive and node not in self._frozen:
                self.node(node).set_link(peer, up)


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
