"""``tb.connect(local=4)`` until usable, against a bare ``ipyparallel.Cluster(n=4)``, one process a launch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import Any

from tests.bench.table import against

LAUNCHES = 7
BAR = "<= 1.5"
# Both print the seconds from the call to the first answer of all four engines, imports of each included.
OURS = """
import time
start = time.perf_counter()
import tbkit as tb
cl = tb.connect(local=4)
print(time.perf_counter() - start)
cl.close()
"""
BARE = """
import time
start = time.perf_counter()
import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=40)
client = cluster.start_and_connect_sync(activate=False)
client[:].apply_sync(int)
print(time.perf_counter() - start)
client.close()
cluster.stop_cluster_sync()
"""


def launch(code: str) -> float:
    """The seconds that a fresh interpreter measured and printed last."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"bench_connect: a launch failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def measure() -> list[dict[str, Any]]:
    """One row: paired launches, the order swapped each time."""
    ours: list[float] = []
    bare: list[float] = []
    for turn in range(LAUNCHES):
        order = [(OURS, ours), (BARE, bare)]
        for code, times in order if turn % 2 == 0 else reversed(order):
            times.append(launch(code))
    peer = ("bare ipyparallel.Cluster(n=4)", version("ipyparallel"))
    return [against("tb.connect(local=4) until usable", "s", ours, peer, bare, BAR, "tb.connect(local=4)")]
