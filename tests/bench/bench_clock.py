"""Clock alignment between two processes of one machine, judged on offsets and drifts that are put into one of them."""

from __future__ import annotations

import sys
import uuid
from statistics import median
from typing import Any

import numpy as np

from tbkit.stats import Interval, mean_interval
from tests.bench.bench_fabric import launched, start
from tests.bench.table import absolute

LAUNCHES, TRIALS = 7, 100
MISSES = 5.0
LATER_S = 10

RANK = """
import json, sys, time
from tbkit import _kernels
from tbkit.fabric import join
from tbkit.fabric.clock import align

name, rank = sys.argv[1], int(sys.argv[2])
found = []
with join(name, rank, 2) as g:
    for offset, drift in TRIALS:
        origin = int(g.clock_stamps(1 - rank, 1)[0, 0])
        if rank == 1:
            _kernels.testing_skew(g, offset, origin, drift)
        clock = align(g, 1 - rank, 200, 50.0)
        for moment in (clock.origin_ns, time.monotonic_ns(), time.monotonic_ns() + LATER_NS):
            error = clock.at(moment) - (moment + offset + drift * (moment - origin))
            found.append([abs(error), clock.bound_ns(moment)])
        if rank == 1:
            _kernels.testing_skew(g, 0, 0, 0.0)
    g.barrier()
if rank == 0:
    print(json.dumps({"found": found}))
"""


def launch(seed: int) -> Any:
    """Errors and bounds of one launch in ns, shape (trials, 3, 2): at the first exchange, after the last, later."""
    rng = np.random.default_rng(seed)
    offsets, drifts = rng.integers(-(10**9), 10**9, TRIALS), rng.uniform(-1e-4, 1e-4, TRIALS)
    trials = list(zip(offsets.tolist(), drifts.tolist(), strict=True))
    code, name = f"TRIALS, LATER_NS = {trials}, {LATER_S * 10**9}\n{RANK}", f"tbb-{uuid.uuid4().hex[:12]}"
    found: Any = launched([start([sys.executable, "-c", code, name, str(rank)]) for rank in (0, 1)])["found"]
    return np.array(found).reshape(TRIALS, 3, 2)


def measure() -> list[dict[str, Any]]:
    """How many of 100 trials a launch are outside of the bound, the worst launch; and how broad the bound is."""
    launches = [launch(seed) for seed in range(LAUNCHES)]
    command = "align(group, peer, 200, 50.0), offset within 1 s and drift within 100 ppm put in"
    rows = []
    for at, when in enumerate(("at the first exchange", "after the last", f"{LATER_S} s later")):
        outside = [int((each[:, at, 0] > each[:, at, 1]).sum()) for each in launches]
        worst = float(max(outside))
        what = f"clock, {when}: trials of {TRIALS} outside of the bound"
        rows.append(absolute(what, "trials", Interval(worst, worst, worst, LAUNCHES), MISSES, command))
    broad = mean_interval([median(each[:, 0, 1]) / 1000 for each in launches])
    return [*rows, absolute("clock, the bound within the exchanges", "us", broad, 1.0, command)]
