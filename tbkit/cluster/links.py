"""The micro suite: cables and collectives of a live cluster, measured in blocks, kept with every raw sample.

A block is one pass over all cables in random order, sizes in random order; every interval is over blocks. One pair of
ranks measures at a time, the others wait. A new sub-verb is a function below and a row of :data:`MEASURES`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from tbkit.cluster.cluster import Cluster
from tbkit.errors import UsageError
from tbkit.fabric.cards import build, odd_ones, schema
from tbkit.fabric.cards.store import Sample, keep
from tbkit.record.provenance import usable_cpus, versions
from tbkit.record.store import new_run_id
from tbkit.stats import Interval

SIZES = tuple(2**k for k in range(3, 23))  # 8 B to 4 MiB
STREAM_SIZES = tuple(4**k for k in range(3, 12))  # 64 B to 4 MiB
REDUCE_SIZES = tuple(4**k for k in range(1, 13))  # 4 B to 16 MiB
WIDTHS, PIECES, REPEATS = (64, 576), 32, 20
WIDEST = 8192
LARGE_BYTES = 1 << 20  # the message by which one cable is known beside a collective
WINDOW_BYTES, WINDOWS = 8 << 20, 20
LARGEST_BYTES = 1 << 30
LOOP_S = 90.0  # more than the budget: what a loaded machine may take for the least turns of one loop

Blocks = list[build.Block]
Way = tuple[int, int]  # the ranks at its source and target


@dataclass(frozen=True)
class Effort:
    """How much is measured. ``sizes`` in bytes, None for those of the sub-verb; ``budget_s`` for a loop of one size."""

    sizes: tuple[int, ...] | None = None
    blocks: int = 5
    iterations: int = 1000
    budget_s: float = 0.05
    seed: int = 0

    def check(self) -> None:
        """UsageError for what cannot be measured."""
        if self.blocks < 2:
            raise UsageError("--blocks", "at least 2, for an interval", str(self.blocks))
        if self.iterations < 2:
            raise UsageError("--iterations", "at least 2", str(self.iterations))
        for size in self.sizes or ():
            if not 1 <= size <= LARGEST_BYTES:
                raise UsageError("--sizes", f"message sizes of 1 to {LARGEST_BYTES} bytes", str(size))


@dataclass
class Bench:
    """One measurement under way: the cluster, the order of things, and the samples so far."""

    cluster: Cluster
    effort: Effort
    say: Callable[[str], None]
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.effort.seed)

    def sizes(self, known: Sequence[int]) -> list[int]:
        """The sizes that are asked for, rising."""
        return sorted(set(self.effort.sizes or known))

    def shuffled(self, things: Sequence[Any]) -> list[Any]:
        """In a random order of the seed."""
        return self.random.sample(list(things), len(things))

    def blocks(self, what: str) -> range:
        """The numbers of the blocks; says which one begins."""
        self.say(f"{what}: {self.effort.blocks} blocks, {len(self.pairs())} cables")
        return range(self.effort.blocks)

    def pairs(self) -> list[tuple[int, int]]:
        """The ranks that a cable, or shared memory, joins directly."""
        cabling = self.cluster.cabling()
        if cabling is None:
            return list(combinations(range(self.cluster.size), 2))
        return list(dict.fromkeys(cable.pair for cable in cabling.cables))

    def ask(self, ranks: Sequence[int], loop: str, sizes: Sequence[int], **args: Any) -> list[Any]:
        """A loop of ``fabric.cards.probe`` on these ranks; ``each`` holds what differs between them."""
        each = args.pop("each", [{}] * len(ranks))
        shared = {"loop": loop, "sizes": list(sizes), "budget_s": self.effort.budget_s, **args}
        deadline_s = LOOP_S + 4 * self.effort.budget_s * len(sizes)
        return self.cluster.ask(ranks, "measure", [shared | one for one in each], deadline_s=deadline_s)

    def note(self, what: str, block: int, way: Way, timed_by: int, found: build.Block) -> None:
        """Keep raw samples: times, or rows of (messages, µs)."""
        source, target, timer = (self.cluster.nodes[i] for i in (*way, timed_by))
        for size, samples in found.items():
            windows = samples.ndim == 2
            us, messages = (samples[:, 1], int(samples[0, 0])) if windows else (samples, 1)
            row = Sample(what, block, source, target, timer, int(size), messages, us.tolist())
            self.samples.append(row)

    def facts(self, what: str) -> dict[str, Any]:
        """What every measurement says of itself."""
        effort, cluster = self.effort, self.cluster
        factors = {
            "blocks": effort.blocks,
            "iterations at most": effort.iterations,
            "seconds a loop": effort.budget_s,
            "seed": effort.seed,
            "ranks": cluster.size,
            "cores": usable_cpus(),
            "waiting": cluster.policy_resolved,
            "one-way time": "half of a round trip, compiled loop",
            "stream": f"windows of {WINDOW_BYTES} bytes, timed at the receiver, called from Python",
            "versions": versions(),
        }
        return {
            "id": new_run_id(what),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "reality": cluster.reality,
            "carrier": cluster.carrier,
            "nodes": tuple(cluster.nodes),
            "factors": factors,
            "notes": _notes(cluster),
        }


def _notes(cluster: Cluster) -> tuple[str, ...]:
    cores = usable_cpus() or cluster.size
    found = [] if cluster.reality != "local" else ["one machine: nothing here is the speed of a cable"]
    if cluster.size > cores:
        found.append(f"oversubscribed: {cluster.size} ranks on {cores} cores")
    return tuple(found)


def measure(
    cluster: Cluster, what: str = "cards", *, say: Callable[[str], None] = lambda _: None, **effort: Any
) -> schema.Measurement:
    """Run one of the micro suite on a cluster and keep it below the folder of runs.

    ``effort``: the fields of :class:`Effort`. Raises UsageError for an unknown name, fewer than two nodes, or an effort
    that cannot be.
    """
    if what not in MEASURES:
        raise UsageError("links", f"one of {', '.join(MEASURES)}", what)
    wanted = Effort(**effort)
    wanted.check()
    check_nodes(what, cluster.size)
    cluster.heal(say=say)
    bench = Bench(cluster, wanted, say)
    return keep(MEASURES[what][1](bench), bench.samples)


def check_nodes(what: str, count: int) -> None:
    """UsageError where a measurement needs more nodes; one node can only cross."""
    if count == 1 and what != "crossing":
        raise UsageError(f"links {what}", "at least 2 nodes", str(count), "Try --local 2")


def _latencies(bench: Bench, block: int, pair: Way, into: dict[Way, Blocks]) -> None:
    sizes = bench.shuffled(bench.sizes(SIZES))
    each = [{"peer": pair[1]}, {"peer": pair[0]}]
    found = bench.ask(pair, "latency", sizes, iterations=bench.effort.iterations, each=each)
    for own, answer in zip((0, 1), found, strict=True):
        way = (pair[own], pair[1 - own])
        bench.note("latency", block, way, way[0], answer)
        into[way].append(answer)


def _streams(bench: Bench, block: int, pair: Way, into: dict[Way, Blocks], known: Sequence[int] = ()) -> None:
    for way in bench.shuffled([pair, pair[::-1]]):
        sizes = bench.shuffled(known or bench.sizes(STREAM_SIZES))
        args = {"source": way[0], "target": way[1], "window_bytes": WINDOW_BYTES, "windows": WINDOWS}
        found = bench.ask(way, "stream", sizes, **args)[1]
        bench.note("stream", block, way, way[1], found)
        into[way].append(found)


def _both_ways(bench: Bench, block: int, pair: Way, into: dict[Way, Blocks]) -> None:
    sizes = bench.shuffled(bench.sizes(STREAM_SIZES))
    args = {"window_bytes": WINDOW_BYTES, "windows": WINDOWS}
    each = [{"peer": pair[1]}, {"peer": pair[0]}]
    for own, answer in zip((0, 1), bench.ask(pair, "both", sizes, each=each, **args), strict=True):
        way = (pair[1 - own], pair[own])
        bench.note("both ways", block, way, way[1], answer)
        into[way].append(answer)


_LOOPS = {"latency": _latencies, "stream": _streams, "both ways": _both_ways}


def _cards(bench: Bench, what: str, loops: Sequence[str]) -> schema.Cards:
    found: dict[str, dict[Way, Blocks]] = {loop: defaultdict(list) for loop in _LOOPS}
    for block in bench.blocks(what):
        for pair in bench.shuffled(bench.pairs()):
            for loop in bench.shuffled(loops):
                _LOOPS[loop](bench, block, pair, found[loop])
    facts = bench.facts(what)
    cards = tuple(_card(bench, pair, found, facts) for pair in bench.pairs())
    return schema.Cards(what=what, cards=cards, findings=odd_ones(cards), **facts)


def _card(
    bench: Bench, pair: Way, found: dict[str, dict[Way, Blocks]], facts: dict[str, Any]
) -> schema.LinkCard:
    names, back = bench.cluster.nodes, pair[::-1]
    ways = [
        build.direction(names[a], names[b], found["latency"][a, b], found["stream"][a, b])
        for a, b in (pair, back)
    ]
    arrived = [dict(build.by_size(found["both ways"][way])) for way in (pair, back)]
    both = tuple(build.both_row(size, there, arrived[1][size]) for size, there in arrived[0].items())
    cabling = bench.cluster.cabling()
    cables = cabling.between(*pair) if cabling else []
    ends = [names[rank] for rank in pair]
    if cables:
        ports = [
            [end.name for end in (c.low, c.high)] for c in cables
        ]  # of several cables, all ports are named
        ends = [
            f"{end}:{'+'.join(dict.fromkeys(port))}"
            for end, port in zip(ends, zip(*ports, strict=True), strict=True)
        ]
    return schema.LinkCard(
        id=facts["id"],
        created=facts["created"],
        reality=facts["reality"],
        carrier=facts["carrier"],
        ends=(ends[0], ends[1]),
        there=ways[0],
        back=ways[1],
        both_ways=both,
        cables=max(1, len(cables)),
        factors=facts["factors"],
    )


def _all_reduce(bench: Bench) -> schema.Collectives:
    ranks = range(bench.cluster.size)
    sizes = [max(4, size // 4 * 4) for size in bench.sizes(REDUCE_SIZES)]
    rows: list[list[build.Block]] = [[] for _ in ranks]
    streams: dict[Way, Blocks] = defaultdict(list)
    for block in bench.blocks("allreduce"):
        order = bench.shuffled(sorted(set(sizes)))
        answers = bench.ask(ranks, "all_reduce", order, iterations=bench.effort.iterations)
        for rank, answer in enumerate(answers):
            rows[rank].append(answer)
            bench.note("all_reduce", block, (rank, rank), rank, {s: x[:-1] for s, x in answer.items()})
        for pair in bench.shuffled(bench.pairs()):
            _streams(bench, block, pair, streams, [LARGE_BYTES])
    found = [build.by_size(blocks) for blocks in rows]
    by_size = [build.collective_row(s, [rank[i][1] for rank in found]) for i, (s, _) in enumerate(found[0])]
    slowest = _slowest(streams)
    return schema.Collectives(sizes=tuple(by_size), cable_bytes_per_s=slowest, **bench.facts("allreduce"))


def _slowest(streams: dict[Way, Blocks]) -> Interval:
    key = str(LARGE_BYTES)
    ways = [build.bandwidth_row(LARGE_BYTES, [block[key] for block in blocks]) for blocks in streams.values()]
    return min((way.block_bytes_per_s for way in ways), key=lambda found: found.value)


def _crossing(bench: Bench) -> schema.Crossing:
    widths = bench.sizes(WIDTHS)
    if widths[-1] > WIDEST:
        raise UsageError("--sizes", f"of crossing, widths up to {WIDEST}", str(widths[-1]))
    rows: list[Blocks] = [[] for _ in bench.cluster.nodes]
    where = set()
    bench.say(f"crossing: {bench.effort.blocks} blocks on {bench.cluster.size} nodes, one at a time")
    for block in range(bench.effort.blocks):
        for rank in bench.shuffled(range(bench.cluster.size)):
            args = {"widths": bench.shuffled(widths), "pieces": PIECES, "repeats": REPEATS}
            (answer,) = bench.cluster.ask([rank], "crossing", args, deadline_s=LOOP_S)
            where.add(answer["device"])
            rows[rank].append(answer["samples"])
            for column, what in enumerate(("whole", "cut")):
                columns = {width: x[:, column] for width, x in answer["samples"].items()}
                bench.note(what, block, (rank, rank), rank, columns)
    cuts = [
        build.cut_row(node, width, PIECES, blocks)
        for node, found in zip(bench.cluster.nodes, rows, strict=True)
        for width, blocks in build.by_size(found)
    ]
    return schema.Crossing(device="+".join(sorted(where)), cuts=tuple(cuts), **bench.facts("crossing"))


MEASURES: dict[str, tuple[str, Callable[[Bench], schema.Measurement]]] = {
    "cards": ("all below of every cable", lambda bench: _cards(bench, "cards", list(_LOOPS))),
    "lat": ("half a round trip, by size", lambda bench: _cards(bench, "lat", ["latency"])),
    "bw": ("a stream each way, timed where it arrives", lambda bench: _cards(bench, "bw", ["stream"])),
    "bibw": ("streams both ways at once", lambda bench: _cards(bench, "bibw", ["both ways"])),
    "allreduce": ("all ranks' collective, by size", _all_reduce),
    "crossing": ("what leaving the graph costs", _crossing),
}
