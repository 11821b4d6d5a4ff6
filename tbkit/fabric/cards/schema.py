"""What was measured of cables and of a mesh: frozen structs, JSON in and out, rows under the field's column names.

Times are microseconds (``_us``), sizes bytes. Every measurement holds the word for what is real in it, its factors
and the version of this schema. In perftest's columns an MB is 2^20 bytes, in nccl-tests' a GB is 10^9.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tbkit.fabric.cards.fits import Fit
from tbkit.record.schema import Reality
from tbkit.show import Shown
from tbkit.stats import Interval

CARDS_VERSION = 1
MIB, MILLION, GB = 1 << 20, 1e6, 1e9


class Latency(msgspec.Struct, frozen=True):
    """Half round trips of one size as the sending end saw them, all blocks together, nothing dropped.

    ``block_us``: over the medians of the blocks. ``p99_us`` and the like are samples (nearest rank), never between.
    """

    bytes: int
    iterations: int
    t_min_us: float
    t_max_us: float
    t_typical_us: float  # the median
    t_avg_us: float
    t_stdev_us: float
    p90_us: float
    p99_us: float
    p99_9_us: float
    block_us: Interval

    def columns(self) -> dict[str, Any]:
        """perftest's columns, times in µs."""
        return {
            "#bytes": self.bytes,
            "#iterations": self.iterations,
            "t_min[usec]": self.t_min_us,
            "t_max[usec]": self.t_max_us,
            "t_typical[usec]": self.t_typical_us,
            "t_avg[usec]": self.t_avg_us,
            "t_stdev[usec]": self.t_stdev_us,
            "99% percentile[usec]": self.p99_us,
            "99.9% percentile[usec]": self.p99_9_us,
        }


class Bandwidth(msgspec.Struct, frozen=True):
    """A stream of messages of one size, timed where it arrives, from the end of a window's first message to that of its
    last. ``peak``: the best window. ``block_bytes_per_s``: over the blocks' averages.

    Of both ways at once, the rates of the two directions are added.
    """

    bytes: int
    iterations: int  # messages
    peak_bytes_per_s: float
    average_bytes_per_s: float
    block_bytes_per_s: Interval

    @property
    def messages_per_s(self) -> Interval:
        """The message rate, with the interval of the blocks."""
        found = self.block_bytes_per_s
        value, low, high = (x / self.bytes for x in (found.value, found.low, found.high))
        return Interval(value, low, high, found.n)

    def columns(self) -> dict[str, Any]:
        """perftest's columns."""
        return {
            "#bytes": self.bytes,
            "#iterations": self.iterations,
            "BW peak[MB/sec]": self.peak_bytes_per_s / MIB,
            "BW average[MB/sec]": self.average_bytes_per_s / MIB,
            "MsgRate[Mpps]": self.average_bytes_per_s / self.bytes / MILLION,
        }


class Direction(msgspec.Struct, frozen=True):
    """One way along a cable. ``fit`` is that of the latencies' block medians; None below 3 sizes."""

    source: str
    target: str
    latency: tuple[Latency, ...] = ()
    fit: Fit | None = None
    bandwidth: tuple[Bandwidth, ...] = ()

    @property
    def alpha_us(self) -> Interval | None:
        """The time of an empty message, from the fit's first piece."""
        return self.fit.pieces[0].alpha_us if self.fit else None

    @property
    def beta_bytes_per_s(self) -> Interval | None:
        """Bytes a second of the fit's last piece: what one large message more costs."""
        return self.fit.pieces[-1].beta_bytes_per_s if self.fit else None

    @property
    def stream(self) -> Bandwidth | None:
        """The stream of the largest messages. Not the fastest: to choose the best of several is to choose noise."""
        return self.bandwidth[-1] if self.bandwidth else None

    @property
    def message_rate(self) -> Interval | None:
        """Messages a second of the smallest size."""
        return self.bandwidth[0].messages_per_s if self.bandwidth else None


class LinkCard(Shown, msgspec.Struct, frozen=True):
    """One cable, or the memory that two ranks of a machine share: both directions, and both at once.

    ``ends`` name node and port (``mac1:rdma_en2``). ``cables`` above 1: as many lead from end to end, and their frames
    take turns; the figures are of them together.
    """

    id: str  # of the measurement
    created: str
    reality: Reality
    carrier: str
    ends: tuple[str, str]
    there: Direction
    back: Direction
    both_ways: tuple[Bandwidth, ...] = ()
    cables: int = 1
    factors: dict[str, Any] = {}
    schema_version: int = CARDS_VERSION

    @property
    def directions(self) -> tuple[Direction, Direction]:
        """From the first end to the second, and back."""
        return self.there, self.back

    @property
    def name(self) -> str:
        """Its two ends."""
        return f"{self.ends[0]} to {self.ends[1]}"


class Finding(Shown, msgspec.Struct, frozen=True):
    """A cable that differs from its like: which figure, in which direction, by what ratio, in words."""

    ends: tuple[str, str]
    source: str
    figure: str  # "bandwidth" or "latency"
    ratio: Interval  # this cable's figure over that of its like
    words: str


class Measurement(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """What all measurements have. ``factors``: every setting, as text or number."""

    id: str
    created: str  # ISO 8601, UTC
    reality: Reality
    carrier: str
    nodes: tuple[str, ...]
    factors: dict[str, Any]
    notes: tuple[str, ...] = ()
    path: str = ""  # of the folder with the raw samples; "" when it was not kept
    schema_version: int = CARDS_VERSION

    @property
    def good(self) -> bool:
        """False where an answer was wrong."""
        return True

    def rows(self) -> list[dict[str, Any]]:
        """One dict a row, under the field's column names."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """One document: the rows, and all that stands behind them."""
        document: dict[str, Any] = {"rows": self.rows()} | msgspec.to_builtins(self)
        return document


class Cards(Measurement, frozen=True, kw_only=True, tag_field="kind", tag="cards"):
    """The cards of a cluster's cables, and those that differ from their like. ``what``: the sub-verb."""

    what: str
    cards: tuple[LinkCard, ...]
    findings: tuple[Finding, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """perftest's rows; the columns of what was measured and no others."""
        found = []
        for card in self.cards:
            for way in card.directions:
                place = {"cable": card.name, "from": way.source, "to": way.target}
                found += [place | row.columns() for row in way.latency]
                found += [place | row.columns() for row in way.bandwidth]
            both = {"cable": card.name, "from": "both", "to": "both"}
            found += [both | row.columns() for row in card.both_ways]
        return found


class Collective(msgspec.Struct, frozen=True):
    """A collective of one size. ``time_us``: over blocks, each the median of its slowest rank.

    ``algbw`` is size over time, ``busbw`` that times 2 (p − 1) / p: what one exit a rank would have to carry.
    """

    bytes: int
    count: int
    type: str
    redop: str
    iterations: int
    time_us: Interval
    wrong: int  # elements, of all ranks, that are not the exact sum

    @property
    def algbw_bytes_per_s(self) -> float:
        return self.bytes / self.time_us.value * 1e6

    def busbw_bytes_per_s(self, ranks: int) -> float:
        return self.algbw_bytes_per_s * 2 * (ranks - 1) / ranks


class Collectives(Measurement, frozen=True, kw_only=True, tag_field="kind", tag="allreduce"):
    """All-reduce by size. ``cable_bytes_per_s``: the slowest direction of the slowest cable, measured alone.

    Each rank of a full mesh has p − 1 cables, so its ``busbw`` may exceed one cable: up to (p − 1) × the slowest.
    """

    sizes: tuple[Collective, ...]
    cable_bytes_per_s: Interval | None

    @property
    def good(self) -> bool:
        """Whether every element of every rank was the exact sum."""
        return not any(row.wrong for row in self.sizes)

    @property
    def limit_bytes_per_s(self) -> float | None:
        """The busbw at which the slowest cable of the mesh would be full."""
        return self.cable_bytes_per_s.value * (len(self.nodes) - 1) if self.cable_bytes_per_s else None

    def rows(self) -> list[dict[str, Any]]:
        """nccl-tests' columns (time in µs, GB/s of 10^9 bytes), and the limits beside busbw."""
        cable = self.cable_bytes_per_s.value / GB if self.cable_bytes_per_s else None
        limit = self.limit_bytes_per_s / GB if self.limit_bytes_per_s else None
        return [
            {
                "size": row.bytes,
                "count": row.count,
                "type": row.type,
                "redop": row.redop,
                "time": row.time_us.value,
                "algbw": row.algbw_bytes_per_s / GB,
                "busbw": row.busbw_bytes_per_s(len(self.nodes)) / GB,
                "#wrong": row.wrong,
                "one cable": cable,
                "mesh limit": limit,
            }
            for row in self.sizes
        ]


class Cut(msgspec.Struct, frozen=True):
    """A graph evaluated piece by piece against the same graph evaluated at once, on one node."""

    node: str
    width: int  # of the vector that goes through
    pieces: int
    whole_us: Interval
    cut_us: Interval
    cut_cost_us: Interval  # paired within blocks: (cut − whole) / (pieces − 1)


class Crossing(Measurement, frozen=True, kw_only=True, tag_field="kind", tag="crossing"):
    """What it costs to leave the graph once. ``device`` is where MLX ran: ``cpu`` or ``gpu``.

    On the CPU it is the cost of a cut graph, and no fence: what crossing from GPU to CPU costs only a Mac can show.
    """

    device: str
    cuts: tuple[Cut, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row a node and width; times in µs."""
        return [
            {
                "node": cut.node,
                "device": self.device,
                "width": cut.width,
                "pieces": cut.pieces,
                "whole[usec]": cut.whole_us.value,
                "cut[usec]": cut.cut_us.value,
                "per cut[usec]": cut.cut_cost_us.value,
                "low": cut.cut_cost_us.low,
                "high": cut.cut_cost_us.high,
            }
            for cut in self.cuts
        ]
