"""Shaped links: the latency and bandwidth of a link profile, enforced between the ranks of one machine.

A frame of n bytes that is sent at t is there at ``max(t, link free) + n / bandwidth + latency``, each direction one
serial line, and never earlier. A shape only slows: a latency below the channel's own, or a bandwidth above what the
machine copies, gives the channel's own.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from tbkit import _kernels
from tbkit.errors import UsageError
from tbkit.fabric.cabling import Cabling

LATENCY_MAX_US = 1e6


@dataclass(frozen=True)
class LinkShape:
    """One way's latency in µs and bandwidth in bytes a second of payload (``math.inf``: unbounded); the same both ways.

    Raises UsageError for numbers that cannot be.
    """

    latency_us: float
    bandwidth_bytes_per_s: float
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.latency_us <= LATENCY_MAX_US:
            raise UsageError("link shape", f"a latency of 0 to {LATENCY_MAX_US:g} µs", f"{self.latency_us}")
        if not self.bandwidth_bytes_per_s >= 1:
            rule = "a bandwidth of at least 1 byte a second"
            raise UsageError("link shape", rule, f"{self.bandwidth_bytes_per_s}")

    def row(self) -> tuple[int, float]:
        """Latency in whole nanoseconds, rounded up, and nanoseconds a byte."""
        return math.ceil(self.latency_us * 1000), 1e9 / self.bandwidth_bytes_per_s

    def __str__(self) -> str:
        words = f"{self.latency_us:g} µs, {self.bandwidth_bytes_per_s / 1e9:g} GB/s"
        return f"{self.name} ({words})" if self.name else words


Pair = tuple[int, int]
Shape = LinkShape | Mapping[Pair, LinkShape]


def on_one_node(shape: Shape | None, size: int) -> dict[Pair, LinkShape]:
    """The shape of each pair of a group in shared memory, the lower rank first; a lone shape is for all pairs.

    Raises UsageError for a pair that is none, and where more ranks than cores would share the clock.
    """
    return _checked(shape, combinations(range(size), 2))


def on_cables(shape: Shape | None, cabling: Cabling) -> dict[Pair, LinkShape]:
    """The same by cable; ranks that share memory stay as they are. Only streams between ranks of this machine.

    Raises UsageError too for verbs (a shape would come on top of a real link), for relayed pairs (two cables, one
    stamp) and pairs of several cables, and for an address that is not this machine's, whose clock would be another.
    """
    shapes = _checked(shape, [cable.pair for cable in cabling.cables])
    if shapes and cabling.relays:
        a, b = cabling.relays[0].pair
        got = f"{cabling.nodes[a]} and {cabling.nodes[b]}, relayed by {cabling.nodes[cabling.relays[0].via]}"
        raise UsageError("shaped links", "a cable for every pair of nodes", got, "Add the cable")
    for cable in cabling.cables:
        if cable.pair not in shapes:
            continue
        if (cables := len(cabling.between(*cable.pair))) > 1:
            names = " and ".join(cabling.nodes[rank] for rank in cable.pair)
            raise UsageError(f"shape of {names}", "one cable between the two, as it is one line", f"{cables}")
        if cable.carrier == "verbs":
            raise UsageError(
                f"shape of {cable.low.name}",
                "a shaped link is a stream or shared memory",
                "verbs",
                "Use carrier tcp",
            )
        for end in (cable.low, cable.high):
            _check_here(end.address)
    return shapes


def rows(shapes: Mapping[Pair, LinkShape]) -> list[tuple[int, int, int, float]]:
    """As the compiled module takes them, in the order of the pairs: (low, high, latency_ns, ns_per_byte)."""
    return [(*pair, *shapes[pair].row()) for pair in sorted(shapes)]


def _checked(shape: Shape | None, pairs: Iterable[Pair]) -> dict[Pair, LinkShape]:
    if shape is None:
        return {}
    known = set(pairs)
    shapes = dict.fromkeys(known, shape) if isinstance(shape, LinkShape) else _ordered(shape)
    if unknown := set(shapes) - known:
        rule = "a pair of ranks that a link joins"
        raise UsageError("shaped links", rule, ", ".join(map(str, sorted(unknown))))
    _check_cores(shapes)
    return shapes


def _ordered(shape: Mapping[Pair, LinkShape]) -> dict[Pair, LinkShape]:
    shapes: dict[Pair, LinkShape] = {}
    for (a, b), one in shape.items():
        if shapes.setdefault((min(a, b), max(a, b)), one) != one:
            raise UsageError("shaped links", "one shape a pair", f"two of {min(a, b)} and {max(a, b)}")
    return shapes


def _check_cores(shapes: Mapping[Pair, LinkShape]) -> None:
    """A rank that waits for a core meets no moment: nothing but an error says so before the numbers are wrong."""
    ranks, cores = len({rank for pair in shapes for rank in pair}), _kernels.cores_free()
    if ranks > cores:
        raise UsageError(
            "shaped links",
            "a core for each rank, as links are shaped against the real clock",
            f"{ranks} ranks on {cores} cores",
            "Use fewer ranks; with more ranks than cores only virtual deadlines hold, which are a later work",
        )


def _check_here(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            rule = "both ends of a shaped link on this machine, whose clock its frames are stamped by"
            raise UsageError(f"shape of {address}", rule, "an address that is not this machine's") from None
