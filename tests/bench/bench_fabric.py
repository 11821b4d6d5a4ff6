"""The shared-memory fabric against a bare loop, Open MPI and MLX's ring: two ranks, one launch a sample.

Every launch starts its two processes anew and prints the median time of each case; the sides take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tbkit.stats import log_interval
from tests.bench.table import absolute, against

LAUNCHES = 7
CALLS, RING_CALLS = 1000, 200
SIZES = {4: "4 B", 4096: "4 KiB", 65536: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
RING_BARS = {4: ">= 50", 4096: ">= 50", 65536: ">= 20"}
BF16_LIMIT_US = 5.0
ROOT = Path(__file__).resolve().parents[2]
Launch = Callable[[], dict[str, float]]

# The same loop for each side: `call(x, out)` and `barrier()` are the side's own.
LOOP = """
import json, sys, time
import numpy as np

def median_us(call, barrier, calls):
    for _ in range(20):
        call()
    barrier()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6

def reduce_us(call, barrier, sizes, calls):
    found = {}
    for size in sizes:
        x, out = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        found[str(size)] = median_us(lambda: call(x, out), barrier, calls)
        assert (out == 2).all()
    return found
"""
OURS = """
from tbkit.fabric import join
name, rank = sys.argv[1], int(sys.argv[2])
g = join(name, rank, 2)
found = {"pingpong": float(np.median(g.pingpong(1 - rank, 8, 20000)))}
found["bare"] = float(np.median(g.bare_pingpong(1 - rank, 20000)))
found |= reduce_us(g.all_reduce, g.barrier, SIZES, CALLS)
import mlx.core as mx
b = mx.ones((576,), dtype=mx.bfloat16)
mx.eval(b)
found["bf16"] = median_us(lambda: g.all_reduce(b, out=b), g.barrier, CALLS)
g.barrier()
if rank == 0:
    print(json.dumps(found))
"""
MPI = """
from mpi4py import MPI
world = MPI.COMM_WORLD
found = reduce_us(world.Allreduce, world.Barrier, SIZES, CALLS)
if world.rank == 0:
    print(json.dumps(found))
"""
RING = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
group = mx.distributed.init(backend="ring", strict=True)
found = {}
for size in SIZES:
    x = mx.ones((size // 4,))
    mx.eval(x)
    one = lambda: mx.eval(mx.distributed.all_sum(x))
    found[str(size)] = median_us(one, one, CALLS)
if group.rank() == 0:
    print(json.dumps(found))
"""


def program(side: str, sizes: list[int], calls: int) -> str:
    """The text of one side's process."""
    return f"SIZES, CALLS = {sizes}, {calls}\n{LOOP}{side}"


def launched(processes: list[subprocess.Popen[str]]) -> dict[str, float]:
    """The figures that the first process printed; an error of any is raised with its words."""
    try:
        ended = [(process.communicate(timeout=120), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for (_, words), code in ended:
        if code:
            raise RuntimeError(f"bench_fabric: a launch failed:\n{words[-2000:]}")
    return dict(json.loads(ended[0][0][0].splitlines()[-1]))


def start(command: list[str], **more: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | more
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)


def ours() -> dict[str, float]:
    """One launch of the fabric."""
    code, name = program(OURS, list(SIZES), CALLS), f"tbb-{uuid.uuid4().hex[:12]}"
    return launched([start([sys.executable, "-c", code, name, str(rank)]) for rank in (0, 1)])


def mpi() -> dict[str, float]:
    """One launch of Open MPI with its default settings."""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    code = program(MPI, list(SIZES), CALLS)
    return launched([start(["mpirun", *root, "-n", "2", sys.executable, "-c", code])])


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def ring() -> dict[str, float]:
    """One launch of MLX's ring over the loopback."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(2)]))
        command = [sys.executable, "-c", program(RING, list(RING_BARS), RING_CALLS)]
        return launched([start(command, MLX_HOSTFILE=str(hosts), MLX_RANK=str(rank)) for rank in (0, 1)])


def interleaved(sides: dict[str, Launch], launches: int = LAUNCHES) -> dict[str, dict[str, list[float]]]:
    """All launches, the sides in turn, the order reversed each time: side → case → one median a launch."""
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    for turn in range(launches):
        for side in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            for case, value in sides[side]().items():
                found[side][case].append(value)
    return found


def mpi_version() -> str:
    """Open MPI's version, and mpi4py's."""
    words = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20).stdout.split()
    return f"{words[3] if len(words) > 3 else '?'} (mpi4py {version('mpi4py')})"


def reduce_rows(
    found: dict[str, dict[str, list[float]]], peer: str, name: tuple[str, str]
) -> list[dict[str, Any]]:
    """all_reduce of each size that the peer ran."""
    mine, theirs, rows = found["ours"], found[peer], []
    for size, label in SIZES.items():
        case, bar = str(size), "<= 1.0" if peer == "mpi" else RING_BARS.get(size, "")
        if theirs[case] and bar:
            what = f"all_reduce float32 sum, 2 ranks, {label}, out of place"
            rows.append(against(what, "us", mine[case], name, theirs[case], bar, "group.all_reduce(x, out)"))
    return rows


def measure() -> list[dict[str, Any]]:
    """Every row of the fabric. Open MPI is left out, and named, where there is no mpirun."""
    sides: dict[str, Launch] = {"ours": ours, "mpi": mpi, "ring": ring}
    if shutil.which("mpirun") is None:
        print("bench_fabric: no mpirun here: the rows against Open MPI are left out", file=sys.stderr)
        del sides["mpi"]
    found = interleaved(sides)
    mine, bare = found["ours"], ("bare C loop over one cache line", "")
    what, command = "8-byte ping-pong, one way, framed channel, deadline on", "group.pingpong(peer, 8, 20000)"
    rows = [against(what, "us", mine["pingpong"], bare, mine["bare"], "<= 3.0", command)]
    if "mpi" in sides:
        rows += reduce_rows(found, "mpi", ("Open MPI", mpi_version()))
    rows += reduce_rows(found, "ring", ("MLX ring, 127.0.0.1", version("mlx")))
    what, command = (
        "all_reduce of an evaluated 576 x bfloat16 mlx array, 2 ranks",
        "group.all_reduce(b, out=b)",
    )
    return [*rows, absolute(what, "us", log_interval(mine["bf16"]), BF16_LIMIT_US, command)]
