"""What the frames between local engines go over, and the cables that a cluster on one machine plays.

``shm`` has none: the ranks share memory. ``tcp`` has a full mesh of streams on the loopback address. ``verbs`` has one
device a pair on each node, as Macs have ports, made by the false librdma that TBKIT_LIBRDMA names.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from itertools import combinations
from typing import Literal, get_args

from tbkit.errors import UsageError
from tbkit.fabric import Cabling
from tbkit.record.schema import Reality

Carrier = Literal["shm", "tcp", "verbs"]
LIBRARY, RULES = "TBKIT_LIBRDMA", "TBKIT_MOCK_RULES"
LOOPBACK = "127.0.0.1"


def check(carrier: str) -> None:
    """UsageError for a carrier that is not there, or that nothing here can play."""
    known = get_args(Carrier)
    if carrier not in known:
        raise UsageError("carrier", f"one of {', '.join(known)}", repr(carrier), "Try carrier='tcp'")
    if carrier == "verbs" and not os.environ.get(LIBRARY):
        remedy = "Set it to the path of libtbmock, which is built beside the compiled module"
        raise UsageError("carrier verbs", f"{LIBRARY} names a false librdma", "not set", remedy)


def reality(carrier: Carrier) -> Reality:
    """The word for what is real on one machine."""
    return "mock" if carrier == "verbs" else "local"


def cabling(carrier: Carrier, names: Sequence[str], chosen: Sequence[int]) -> Cabling | None:
    """The cables between the chosen nodes, which are its ranks in that order; None for shared memory or one node."""
    nodes = [names[i] for i in chosen]
    if carrier == "shm" or len(nodes) < 2:
        return None
    if carrier == "tcp":
        return Cabling.mesh(nodes, [LOOPBACK] * len(nodes))
    devices = [[None if a == b else _device(a, b) for b in chosen] for a in chosen]
    ends = {(rank, _device(a, b)): _address(a, b) for rank, a in enumerate(chosen) for b in chosen if a != b}
    return Cabling.from_devices(nodes, devices, ends)


def environment(carrier: Carrier, names: Sequence[str], namespace: str) -> dict[str, dict[str, str]]:
    """More environment variables of the rank processes, by node."""
    if carrier != "verbs":
        return {}
    pairs = combinations(range(len(names)), 2)
    cables = ",".join(f"{_end(names, a, b)}-{_end(names, b, a)}" for a, b in pairs)
    rules = os.environ.get(
        RULES, f"page={mmap.PAGESIZE}"
    )  # else Apple's, which no other machine's memory has
    shared = {LIBRARY: os.environ[LIBRARY], RULES: rules}
    return {
        name: shared | {"TBKIT_MOCK": f"namespace={namespace}; node={name}; cables={cables}"}
        for name in names
    }


def _device(node: int, peer: int) -> str:
    """The device of a node that faces a peer."""
    return f"rdma_en{2 + (peer if peer < node else peer - 1)}"


def _address(node: int, peer: int) -> str:
    """A loopback address of its own for each end of each cable: pair k has 127.0.k.1 and 127.0.k.2."""
    low, high = min(node, peer), max(node, peer)
    return f"127.0.{1 + high * (high - 1) // 2 + low}.{1 + (node > peer)}"


def _end(names: Sequence[str], node: int, peer: int) -> str:
    return f"{names[node]}:{_device(node, peer)}/{_address(node, peer)}"
