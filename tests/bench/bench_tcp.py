"""Provider tcp over the loopback against a bare blocking socket loop in C, one launch a sample, in turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.bench_fabric import interleaved, launched, start
from tests.bench.table import against

HERE = Path(__file__).parent
LAUNCHES = 21  # where the scheduler puts two ends differs from launch to launch
BYTES, ITERATIONS = 64, 20_000
RANK = """
import json, sys
from pathlib import Path
import numpy as np
from tbkit.fabric import Cabling, form, over_folder
rank = int(sys.argv[1])
cabling = Cabling.mesh(["a", "b"], ["127.0.0.1", "127.0.0.1"])
g = form(cabling, rank, over_folder(Path(sys.argv[2]), rank, 2))
us = float(np.median(g.pingpong(1 - rank, BYTES, ITERATIONS)))
g.barrier()
if rank == 0:
    print(json.dumps({"pingpong": us}))
"""


def ours() -> dict[str, float]:
    """One launch of two ranks over provider tcp."""
    code = f"BYTES, ITERATIONS = {BYTES}, {ITERATIONS}\n{RANK}"
    with tempfile.TemporaryDirectory() as folder:
        return launched([start([sys.executable, "-c", code, str(rank), folder]) for rank in (0, 1)])


def bare(program: Path) -> dict[str, float]:
    """One launch of the C loop."""
    command = [str(program), str(BYTES), str(ITERATIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {"pingpong": float(done.stdout)}


def measure() -> list[dict[str, Any]]:
    """One row: 64 B, one way."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "socket_loop"
        subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "socket_loop.c")], check=True)
        found = interleaved({"ours": ours, "bare": lambda: bare(program)}, LAUNCHES)
    what, peer = (
        "64 B ping-pong over provider tcp, loopback, one way",
        ("bare blocking C socket loop, TCP_NODELAY", ""),
    )
    command = f"group.pingpong(peer, {BYTES}, {ITERATIONS})"
    return [
        against(what, "us", found["ours"]["pingpong"], peer, found["bare"]["pingpong"], "<= 1.2", command)
    ]
