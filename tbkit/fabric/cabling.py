"""Which cable leads from where to where: the map that every rank of a group over several nodes holds.

A pair of ranks on the same node shares memory; any other pair has a cable, or a neighbour of both relays for it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from tbkit.errors import UsageError

Carrier = Literal["tcp", "verbs"]
Row = Sequence["str | Sequence[str] | None"]
RANKS_MAX, CABLES_MAX = 16, 64
NODE_MAX, DEVICE_MAX = 47, 31


@dataclass(frozen=True)
class End:
    """One end of a cable: the rank there, its RDMA device and port, the address that its node has on the cable."""

    rank: int
    address: str
    device: str = ""
    port: int = 1

    @property
    def name(self) -> str:
        """The device where there is one, else the address."""
        return self.device or self.address


@dataclass(frozen=True)
class Cable:
    """A cable between two ranks. ``carrier``: ``verbs``, queue pairs on its devices; ``tcp``, a stream."""

    low: End
    high: End
    carrier: Carrier = "tcp"

    @property
    def pair(self) -> tuple[int, int]:
        """The ranks at its ends, the lower first."""
        return self.low.rank, self.high.rank


@dataclass(frozen=True)
class Relay:
    """A pair without a cable, and the rank between them that passes their frames on."""

    pair: tuple[int, int]
    via: int


class Cabling:
    """Nodes by rank, the cables between them, and the relays that these make necessary.

    Ends are put in rank order. A pair without cable, on different nodes, is relayed by the lowest rank that has a
    cable to both. ``nodes`` may repeat a name: those ranks share memory, if no cable joins them.

    Raises UsageError for a map that cannot be: an end that is no rank, two cables on one device, a device without a
    name under ``verbs``, an address that is none, a pair that nothing joins.
    """

    def __init__(self, nodes: Sequence[str], cables: Sequence[Cable] = ()) -> None:
        self.nodes = tuple(nodes)
        self.cables = tuple(_ordered(cable) for cable in cables)
        self._check()
        self.relays = tuple(self._relay(pair) for pair in self._unjoined())

    @classmethod
    def mesh(cls, nodes: Sequence[str], addresses: Sequence[str], carrier: Carrier = "tcp") -> Cabling:
        """A full mesh of one cable a pair, each node with one address for all of them (a plain network)."""
        ends = [End(rank, address) for rank, address in enumerate(addresses)]
        pairs = combinations(range(len(nodes)), 2)
        return cls(nodes, [Cable(ends[a], ends[b], carrier) for a, b in pairs])

    @classmethod
    def from_devices(
        cls, nodes: Sequence[str], devices: Sequence[Row], addresses: Mapping[tuple[int, str], str]
    ) -> Cabling:
        """From MLX's device matrix: ``devices[i][j]`` is what node i has towards j: None, a name, or several.

        The k-th of several is the k-th cable, in the same order at both ends. ``addresses[(rank, device)]`` is the
        IPv4 of that end. Raises UsageError where the two ends of a pair do not have the same number of devices.
        """
        if len(devices) != len(nodes) or any(len(row) != len(nodes) for row in devices):
            sizes = ", ".join(str(len(row)) for row in devices)
            raise UsageError(
                "device matrix", f"one row and one column a node, {len(nodes)}", f"rows of {sizes}"
            )
        cables = []
        for a, b in combinations(range(len(nodes)), 2):
            ours, theirs = _names(devices[a][b]), _names(devices[b][a])
            if len(ours) != len(theirs):
                rule = f"as many devices from {nodes[a]} to {nodes[b]} as back"
                raise UsageError("device matrix", rule, f"{ours or 'none'} and {theirs or 'none'}")
            for one, other in zip(ours, theirs, strict=True):
                ends = (
                    End(a, _address(addresses, a, one), one),
                    End(b, _address(addresses, b, other), other),
                )
                cables.append(Cable(*ends, "verbs"))
        return cls(nodes, cables)

    def between(self, a: int, b: int) -> list[Cable]:
        """The cables of a pair, in the order in which their frames take turns."""
        return [cable for cable in self.cables if cable.pair == (min(a, b), max(a, b))]

    def without(self, ranks: set[int]) -> Cabling:
        """The cabling of those that are left, with new ranks in the old order."""
        left = [rank for rank in range(len(self.nodes)) if rank not in ranks]
        number = {rank: new for new, rank in enumerate(left)}
        cables = [_renumbered(c, number) for c in self.cables if set(c.pair) <= set(left)]
        return Cabling([self.nodes[rank] for rank in left], cables)

    def rows(self) -> list[tuple[Any, ...]]:
        """As the compiled module takes it: (by, via, end, end) with ends (rank, device, port, address)."""
        cables = [(c.carrier, -1, _row(c.low), _row(c.high)) for c in self.cables]
        return cables + [
            ("relay", r.via, (r.pair[0], "", 1, ""), (r.pair[1], "", 1, "")) for r in self.relays
        ]

    def __str__(self) -> str:
        lines = [
            f"{self.nodes[c.low.rank]}:{c.low.name} to {self.nodes[c.high.rank]}:{c.high.name} ({c.carrier})"
            for c in self.cables
        ]
        lines += [
            f"{self.nodes[r.pair[0]]} to {self.nodes[r.pair[1]]}: no cable, relayed by {self.nodes[r.via]}"
            for r in self.relays
        ]
        return "\n".join(lines)

    def _check(self) -> None:
        if not 1 <= len(self.nodes) <= RANKS_MAX:
            raise UsageError("cabling", f"1 to {RANKS_MAX} nodes", str(len(self.nodes)))
        if len(self.cables) > CABLES_MAX:
            raise UsageError("cabling", f"at most {CABLES_MAX} cables", str(len(self.cables)))
        for name in self.nodes:
            if not 0 < len(name.encode()) <= NODE_MAX:
                raise UsageError("cabling", f"a node's name of 1 to {NODE_MAX} bytes", repr(name))
        for cable in self.cables:
            self._check_cable(cable)
        self._check_devices()

    def _check_cable(self, cable: Cable) -> None:
        for end in (cable.low, cable.high):
            if not 0 <= end.rank < len(self.nodes):
                raise UsageError("cable", f"ends at ranks 0 to {len(self.nodes) - 1}", f"rank {end.rank}")
            if cable.carrier == "verbs" and not end.device:
                raise UsageError(
                    f"cable of {self.nodes[end.rank]}", "an RDMA device at each end under verbs", "none"
                )
            if len(end.device.encode()) > DEVICE_MAX:
                raise UsageError("cable", f"a device's name of at most {DEVICE_MAX} bytes", end.device)
            try:
                ipaddress.ip_address(end.address)
            except ValueError:
                where, rule = f"cable of {self.nodes[end.rank]}", "an IPv4 or IPv6 address, never a name"
                raise UsageError(where, rule, repr(end.address)) from None
        if cable.low.rank == cable.high.rank:
            raise UsageError("cable", "joins two ranks", f"rank {cable.low.rank} with itself")

    def _check_devices(self) -> None:
        ends = [end for cable in self.cables for end in (cable.low, cable.high) if end.device]
        taken = Counter((self.nodes[end.rank], end.device, end.port) for end in ends)
        for (node, device, _), times in taken.items():
            if times > 1:
                rule = "a device faces one peer by one cable"
                raise UsageError(
                    f"{node}:{device}", rule, f"{times} cables", "Look which cable is in that port"
                )

    def _unjoined(self) -> list[tuple[int, int]]:
        joined = {cable.pair for cable in self.cables}
        pairs = combinations(range(len(self.nodes)), 2)
        return [(a, b) for a, b in pairs if (a, b) not in joined and self.nodes[a] != self.nodes[b]]

    def _relay(self, pair: tuple[int, int]) -> Relay:
        joined = {frozenset(cable.pair) for cable in self.cables}
        for via in range(len(self.nodes)):
            if {frozenset((via, end)) for end in pair} <= joined:
                return Relay(pair, via)
        names = " and ".join(self.nodes[end] for end in pair)
        raise UsageError(f"cabling of {names}", "a cable, or a neighbour that has one to both", "neither")


def _ordered(cable: Cable) -> Cable:
    low, high = sorted((cable.low, cable.high), key=lambda end: end.rank)
    return Cable(low, high, cable.carrier)


def _renumbered(cable: Cable, number: Mapping[int, int]) -> Cable:
    low, high = (End(number[end.rank], end.address, end.device, end.port) for end in (cable.low, cable.high))
    return Cable(low, high, cable.carrier)


def _row(end: End) -> tuple[int, str, int, str]:
    return end.rank, end.device, end.port, end.address


def _names(entry: str | Sequence[str] | None) -> list[str]:
    if entry is None:
        return []
    return [entry] if isinstance(entry, str) else list(entry)


def _address(addresses: Mapping[tuple[int, str], str], rank: int, device: str) -> str:
    if (rank, device) not in addresses:
        raise UsageError(f"rank {rank}, {device}", "an address for each end of a cable", "none")
    return addresses[rank, device]
