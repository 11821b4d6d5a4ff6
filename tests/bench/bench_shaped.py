"""Shaped links against their profiles: two ranks on two cores, over shared memory and over streams of the loopback.

Every launch starts its two processes anew and forms a group a profile. A deviation is from the profile's own figure.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tbkit.stats import mean_interval
from tests.bench.bench_fabric import launched, start
from tests.bench.table import absolute

LAUNCHES = 9
LATENCIES_US = {"shm": [5, 20, 50, 100, 300], "tcp": [5, 20, 50, 100, 300]}
BANDWIDTHS_GB_S = {"shm": [0.5, 1, 2, 4, 8], "tcp": [0.5, 1, 2]}
MEDIAN_SHARE, MEDIAN_US, P90_US, BANDWIDTH_PERCENT = 0.05, 3.0, 10.0, 5.0

RANK = """
import json, os, sys
from pathlib import Path
import numpy as np
from tbkit.fabric import Cabling, LinkShape, form, join, over_folder

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
number = 0

def formed(carrier, shape):
    global number
    number += 1
    if carrier == "shm":
        return join(f"{folder.name}-{number}", rank, 2, shape=shape)
    place = folder / str(number)
    place.mkdir(exist_ok=True)
    return form(Cabling.mesh(["a", "b"], ["127.0.0.1"] * 2), rank, over_folder(place, rank, 2), shape=shape)

def pin(to):
    if cores:
        os.sched_setaffinity(0, to)  # after the join, which counts the cores that each rank may use

def timed(carrier, latency_us, bandwidth, measure):
    with formed(carrier, LinkShape(latency_us, bandwidth)) as g:
        pin({sorted(cores)[rank]} if len(cores) > 1 else cores)
        found = measure(g)
        g.barrier()
    pin(cores)
    return found

def latency(g):
    return np.percentile(g.pingpong(1 - rank, 8, 1000)[100:], [50, 90]).tolist()

def rate(latency_us):
    def measure(g):
        g.window(1 - rank, MESSAGE, COUNT // 4, 2)
        us = g.window(1 - rank, MESSAGE, COUNT, 15)
        return MESSAGE * COUNT / float(np.median(us) - 2 * latency_us) / 1000
    return measure

MESSAGE, COUNT, WAY_US = 1 << 18, 256, 10.0
found = {}
for carrier, each in LATENCIES_US.items():
    for us in each:
        found[f"{carrier} {us} us"] = timed(carrier, us, 8e9, latency)
for carrier, each in BANDWIDTHS_GB_S.items():
    for gb_s in each:
        found[f"{carrier} {gb_s} GB/s"] = timed(carrier, WAY_US, gb_s * 1e9, rate(WAY_US))
if rank == 0:
    print(json.dumps(found))
"""


def launch() -> dict[str, Any]:
    """The figures of one launch, by carrier and profile: (median, p90) in µs, or GB/s."""
    code = f"LATENCIES_US, BANDWIDTHS_GB_S = {LATENCIES_US}, {BANDWIDTHS_GB_S}\n{RANK}"
    with tempfile.TemporaryDirectory(prefix="tbb-shaped-") as folder:
        return launched([start([sys.executable, "-c", code, folder, str(rank)]) for rank in (0, 1)])


def latency_rows(carrier: str, us: float, found: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """How far median and p90 are from the profile's latency, each against its bar."""
    limit = max(MEDIAN_SHARE * us, MEDIAN_US)
    rows = []
    for at, word, bar in ((0, "median", limit), (1, "p90", P90_US)):
        off = mean_interval([abs(each[at] - us) for each in found])
        what = f"shaped {carrier}, 8 B one way, {word} off {us:g} us"
        rows.append(absolute(what, "us", off, bar, "group.pingpong(peer, 8, 1000)"))
    return rows


def bandwidth_row(carrier: str, gb_s: float, found: Sequence[float]) -> dict[str, Any]:
    """By how many per cent the rate of a stream of 64 MiB is off the profile's bandwidth."""
    off = mean_interval([abs(each / gb_s - 1) * 100 for each in found])
    what = f"shaped {carrier}, stream, off {gb_s:g} GB/s"
    return absolute(what, "%", off, BANDWIDTH_PERCENT, "group.window(peer, 1 << 18, 256, 15)")


def measure() -> list[dict[str, Any]]:
    """Every profile's rows."""
    found: dict[str, list[Any]] = defaultdict(list)
    for _ in range(LAUNCHES):
        for case, value in launch().items():
            found[case].append(value)
    rows = []
    for carrier, each in LATENCIES_US.items():
        rows += [row for us in each for row in latency_rows(carrier, us, found[f"{carrier} {us} us"])]
    for carrier, rates in BANDWIDTHS_GB_S.items():
        rows += [bandwidth_row(carrier, gb_s, found[f"{carrier} {gb_s} GB/s"]) for gb_s in rates]
    return rows
