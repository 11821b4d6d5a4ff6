"""Provider verbs against perftest on the same virtual nodes: two nodes by a cable, and both ends inside one.

The nodes have one emulated processor each, so no figure here is a performance figure; the ratios are the result.
Every launch starts new programs; the sides take turns. Bandwidths are compared as times of the same bytes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from statistics import median
from typing import Any, NamedTuple

from tbkit.errors import TbkitError
from tests.bench.table import against
from tests.rack import perftest
from tests.rack.images import Missing
from tests.rack.rack import Rack
from tests.rack.ranks import Ranks

LAUNCHES = 7
SMALL, PAGE, MESSAGE, MIB = 64, 4096, 64 << 10, 1 << 20
LOOPS, STREAMED = 300, 8 << 20
ROUNDS = f"""
import time
def median_us(call, times):
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return float(np.median(spent)) * 1e6
def reduce_us(size, times):
    x = np.ones(size // 4, np.float32)
    out = np.empty_like(x)
    g.barrier()
    return median_us(lambda: g.all_reduce(x, out), times)
def stream_us(size):
    return float(np.median(g.window(1 - rank, size, {STREAMED} // size, 3)))
result = {{
    "lat {SMALL}": float(np.median(g.pingpong(1 - rank, {SMALL}, {LOOPS}))),
    "lat {PAGE}": float(np.median(g.pingpong(1 - rank, {PAGE}, {LOOPS}))),
    "bw {MESSAGE}": stream_us({MESSAGE}),
    "bw {MIB}": stream_us({MIB}),
    "reduce 4": reduce_us(4, {LOOPS}),
    "reduce {MIB}": reduce_us({MIB}, 5),
    "reduce {16 * MIB}": reduce_us({16 * MIB}, 1),
}}
"""
Figures = dict[str, float]


class Place(NamedTuple):
    """Where the two ends are. Inside one node there are two processors, or both ends would wait for time slices."""

    numbers: tuple[int, int]
    inside: int | None
    processors: int


PLACES = (Place((1, 2), None, 1), Place((1, 1), 2, 2))


def ours(rack: Rack, numbers: tuple[int, int], inside: int | None) -> Figures:
    """One launch of two ranks; the median of every case, µs, from the lower rank."""
    ranks = Ranks(rack, numbers)
    try:
        for answer in ranks.form("verbs", inside=inside):
            if isinstance(answer, TbkitError):
                raise answer
        found: Figures = ranks.run(ROUNDS, timeout_s=300.0)[0]
        ranks.run("g.close()")
        return found
    finally:
        ranks.end()


def theirs(rack: Rack, numbers: tuple[int, int], inside: int | None) -> Figures:
    """One launch of each perftest program: typical latency, and the times that its server's bandwidth means, µs."""
    server, client = numbers
    found = {
        f"lat {size}": perftest.send_lat(rack, server, client, size, LOOPS, inside).typical_us
        for size in (SMALL, PAGE)
    }
    for size in (MESSAGE, MIB):
        speed = perftest.send_bw(rack, server, client, size, STREAMED // size, inside).average_bytes_per_s
        found[f"bw {size}"] = STREAMED / speed * 1e6
    return found


def rows(
    mine: dict[str, list[float]], peer: dict[str, list[float]], where: str, bars: tuple[str, str]
) -> list[Any]:
    """Latency and streaming of one place."""
    found = []
    for case, label, bar in (
        (f"lat {SMALL}", "ping-pong, 64 B, one way", bars[0]),
        (f"lat {PAGE}", "ping-pong, 4 KiB, one way", bars[0]),
        (f"bw {MESSAGE}", "streaming of 8 MiB in 64 KiB", bars[1]),
        (f"bw {MIB}", "streaming of 8 MiB in 1 MiB", bars[1]),
    ):
        name = "ib_send_lat -c UC" if case.startswith("lat") else "ib_send_bw -c UC, its server"
        found.append(
            against(
                f"verbs, {where}: {label}", "us", mine[case], (name, ""), peer[case], bar, "Group.pingpong"
            )
        )
    return found


def compared(place: Place) -> dict[str, dict[str, list[float]]]:
    """All launches of one place on nodes of its own: side → case → one figure a launch."""
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in ("ours", "theirs")}
    sides = (("ours", ours), ("theirs", theirs))
    with Rack(2, processors=place.processors) as rack:
        for turn in range(LAUNCHES):
            for side, launch in sides if turn % 2 == 0 else reversed(sides):
                for case, value in launch(rack, place.numbers, place.inside).items():
                    found[side][case].append(value)
    return found


def measure() -> list[dict[str, Any]]:
    """All rows of the rack; none, and why, where nodes cannot be had."""
    try:
        apart, inside = (compared(place) for place in PLACES)
    except Missing as missing:
        print(f"bench_rack: {missing}", file=sys.stderr)
        return []
    return [
        *rows(apart["ours"], apart["theirs"], "two nodes", ("<= 1.25", ">= 0.9")),
        *rows(inside["ours"], inside["theirs"], "inside one node", ("<= 1.15", ">= 0.95")),
        *reductions(apart["ours"], apart["theirs"]),
    ]


def reductions(mine: dict[str, list[float]], peer: dict[str, list[float]]) -> list[dict[str, Any]]:
    """all_reduce between two nodes: 4 B against a message's way, large ones against streaming, each way."""
    what, call = "verbs, two nodes: all_reduce of {}", "group.all_reduce(x, out)"
    lat, found = ("ib_send_lat -c UC -s 64", ""), []
    found.append(
        against(what.format("4 B"), "us", mine["reduce 4"], lat, peer[f"lat {SMALL}"], "<= 2.0", call)
    )
    for size, label in ((MIB, "1 MiB"), (16 * MIB, "16 MiB")):
        streamed = [us * size / STREAMED for us in peer[f"bw {MIB}"]]
        name = ("ib_send_bw -c UC -s 1 MiB, its server", "")
        found.append(
            against(what.format(label), "us", mine[f"reduce {size}"], name, streamed, ">= 0.6", call)
        )
    assert all(median(values) > 0 for values in mine.values())
    return found
