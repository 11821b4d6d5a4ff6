"""Windows: every block of every rank's memory can be read at any time, and what stands against it is said in time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbkit.errors import (
    BufferRejected,
    FabricError,
    FabricTimeout,
    Interrupted,
    PeerDied,
    PeerSilent,
    UsageError,
)

BYTES = 1_000_003
OPEN = """
memory = np.random.default_rng([seed, rank]).integers(0, 256, exposed, dtype=np.uint8)
w = g.expose(memory)
"""
READ = "result = w.read(owner, offset, length).tobytes()"
TIMED = """
import time
began = time.monotonic()
try:
    {call}
finally:
    took = time.monotonic() - began
"""
LOOPBACK = """
from pathlib import Path
from tbkit.fabric import Cabling, form, over_folder
nodes = [f"mac{r + 1}" for r in range(size)]
exchange = over_folder(Path(folder), rank, size)
g = form(Cabling.mesh(nodes, ["127.0.0.1"] * size), rank, exchange, deadline_s=20.0, silence_s=1.0)
"""


def pattern(rank: int, count: int = BYTES) -> np.ndarray:
    return np.random.default_rng([7, rank]).integers(0, 256, count, dtype=np.uint8)


def took(ranks: Any, rank: int) -> float:
    return float(ranks.run("result = took", [rank])[0])


def opened(ranks: Any, size: int, count: int = BYTES) -> None:
    """A group of the first ranks, called ``g`` there, and a window ``w`` of ``count`` bytes a rank."""
    ranks.group(size)
    answers = ranks.run(OPEN, list(range(size)), seed=7, exposed=count)
    assert answers == [None] * size, answers


def opened_over_streams(ranks: Any, size: int, folder: Path, count: int = BYTES) -> None:
    answers = ranks.run(LOOPBACK + OPEN, list(range(size)), seed=7, exposed=count, folder=str(folder))
    assert answers == [None] * size, answers


@pytest.fixture(scope="module")
def shared(pool: Any) -> Any:
    """Three ranks of the pool with a window that no test closes."""
    opened(pool, 3)
    pool.run("shared = g, w", [0, 1, 2])
    yield pool
    pool.run("shared[1].close()", [0, 1, 2])


@pytest.fixture
def window(shared: Any) -> Any:
    """The same, with ``g`` and ``w`` of this test's ranks set to it."""
    shared.run("g, w = shared", [0, 1, 2])
    return shared


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reader=st.integers(0, 2),
    owner=st.integers(0, 2),
    block=st.one_of(
        st.tuples(st.integers(0, BYTES), st.integers(0, 300)),
        st.tuples(st.integers(0, BYTES), st.sampled_from([65535, 65536, 65537, 131073, BYTES])),
    ),
)
def test_a_read_gives_the_owners_bytes(window: Any, reader: int, owner: int, block: tuple[int, int]) -> None:
    """Any block of any rank, of odd sizes and at odd places, 0 bytes too, comes as it stands there."""
    offset, length = block[0], min(block[1], BYTES - block[0])
    (answer,) = window.run(READ, [reader], owner=owner, offset=offset, length=length)
    assert answer == pattern(owner)[offset : offset + length].tobytes()


@pytest.mark.parametrize("length", [4096, (1 << 20) + 1, pytest.param(64 << 20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("streams", [False, True])
def test_sizes_up_to_64_mib(victims: Any, tmp_path: Path, streams: bool, length: int) -> None:
    """4 KiB to 64 MiB arrive whole, on one node and between nodes, both ranks reading each other at once."""
    if streams:
        opened_over_streams(victims, 2, tmp_path, length + 3)
    else:
        opened(victims, 2, length + 3)
    code = "block = w.read(1 - rank, 3, length, deadline_s=20.0)\nimport zlib\nresult = zlib.crc32(block)"
    for rank, answer in enumerate(victims.run(code, [0, 1], length=length)):
        assert answer == zlib.crc32(pattern(1 - rank, length + 3)[3:])


def test_out_is_filled_whatever_holds_it(window: Any) -> None:
    """numpy, bytearray and mlx take the bytes in place and are returned; what cannot take them is refused."""
    code = """
import mlx.core as mx
ok = []
for out in (np.empty((5, 8), np.uint8), bytearray(40), mx.zeros(10, mx.float32), np.empty(20, ">u2")):
    if hasattr(mx, "eval") and isinstance(out, mx.array):
        mx.eval(out)
    ok.append(w.read(1, 11, 40, out) is out and memoryview(out).tobytes() == w.read(1, 11, 40).tobytes())
result = ok
"""
    assert window.run(code, [0]) == [[True] * 4]
    for out in ("np.empty(39, np.uint8)", "bytes(40)", "np.empty((40, 2), np.uint8)[:, 0]", "[0] * 40"):
        (answer,) = window.run(f"w.read(1, 11, 40, {out})", [0])
        assert isinstance(answer, BufferRejected), answer


@pytest.mark.parametrize(
    ("offset", "length"), [(BYTES, 1), (0, BYTES + 1), (BYTES + 5, 0), (-1, 5), (3, -1), (1 << 63, 1 << 63)]
)
def test_a_block_beyond_what_is_exposed_is_one_line(window: Any, offset: int, length: int) -> None:
    """UsageError says how much there is; the group goes on."""
    (answer,) = window.run("w.read(1, offset, length)", [0], offset=offset, length=length)
    assert isinstance(answer, UsageError) and str(BYTES) in str(answer) and "\n" not in str(answer)
    assert window.run("result = w.bytes_by_rank", [2]) == [(BYTES,) * 3]


def test_a_rank_may_expose_nothing(pool: Any) -> None:
    """None, and an array of 0 bytes: the others still read each other, and are told of the empty one."""
    pool.group(3)
    pool.run("v = g.expose([np.arange(9, dtype=np.uint8), None, np.empty(0)][rank])", [0, 1, 2])
    assert pool.run("result = v.read(0, 2, 3).tolist()", [0, 1, 2]) == [[2, 3, 4]] * 3
    for owner in (1, 2):
        for answer in pool.run("v.read(owner, 0, 0)", [0, 1, 2], owner=owner):
            assert isinstance(answer, UsageError) and "exposes nothing" in str(answer)
    assert pool.run("result = v.bytes_by_rank, repr(v)[:7]", [1]) == [((9, 0, 0), "Window(")]
    pool.run("v.close()", [0, 1, 2])


def test_a_closed_window_is_one_line_on_both_sides(pool: Any) -> None:
    """The owner's close is what the reader is told; its own close ends its reads; other windows go on."""
    pool.group(3)
    pool.run("v, u = g.expose(np.arange(50)), g.expose(np.arange(10, dtype=np.uint8))", [0, 1, 2])
    pool.run("v.close(), v.close()", [1])
    (answer,) = pool.run("v.read(1, 0, 8)", [0])
    assert type(answer) is FabricError and "closed" in str(answer) and "\n" not in str(answer)
    assert pool.run("result = v.read(2, 8, 1).tolist()", [0]) == [[1]]
    (answer,) = pool.run("v.read(2, 0, 8)", [1])
    assert type(answer) is FabricError and "after close()" in str(answer)
    assert pool.run("result = u.read(1, 3, 2).tolist(), v.is_open, u.is_open", [0]) == [([3, 4], True, True)]
    pool.run("v.close(), u.close()", [0, 1, 2])


def test_the_memory_is_held_and_shown_as_it_is(pool: Any) -> None:
    """numpy cannot resize what is exposed and its writes are seen; an mlx array's later values are not."""
    code = """
import mlx.core as mx
a, m = np.arange(1000, dtype=np.int32), mx.arange(1000)
v, u = g.expose(a), g.expose(m)
if rank == 1:
    try:
        a.resize(5000)
    except ValueError:
        held = True
    a[:] = 7
    m += 1
    mx.eval(m)
    del m
    mx.eval([mx.zeros(1000) for _ in range(20)])
g.barrier()
result = v.read(1, 0, 4000).view(np.int32).tolist(), u.read(1, 0, 4000).view(np.int32).tolist()
g.barrier()
v.close(), u.close()
if rank == 1:
    a.resize(5000)
"""
    pool.group(2)
    for answer in pool.run(code, [0, 1]):
        assert answer == ([7] * 1000, list(range(1000)))


BUSY = {
    "holds the lock": "import ctypes\nctypes.PyDLL(None).usleep(2_500_000)",
    "waits in a collective": "g.recv(np.zeros(1), 0)",
    "computes": "end = time.monotonic() + 2.5\nwhile time.monotonic() < end:\n    sum(range(1000))",
}


@pytest.mark.parametrize("busy", BUSY)
def test_the_owner_answers_whatever_it_does(victims: Any, busy: str) -> None:
    """A read does not wait for the owner's interpreter."""
    opened(victims, 2)
    victims.start("import time\ng.barrier()\n" + BUSY[busy], [1], {})
    code = """
import time
g.barrier()
time.sleep(0.2)
began = time.monotonic()
for _ in range(5):
    block = w.read(1, 1, 100_000)
took = time.monotonic() - began
g.send(np.zeros(1), 1) if waits else None
result = block.tobytes()
"""
    (answer,) = victims.run(code, [0], waits="collective" in busy)
    assert answer == pattern(1)[1:100_001].tobytes()
    assert took(victims, 0) < 1.5
    assert victims.collect([1]) == [None]


def test_reads_go_on_beside_collectives_and_from_many_threads(window: Any) -> None:
    """Four threads a rank read all others while the ranks sum: each gets what it asked for, the sums are right."""
    code = """
import threading
right = []
def work(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        owner, offset, length = (int(n) for n in (rng.integers(3), rng.integers(900_000), rng.integers(90_000)))
        block = w.read(owner, offset, length)
        right.append(bool((block == whole[owner][offset : offset + length]).all()))
whole = [np.random.default_rng([7, r]).integers(0, 256, 1_000_003, dtype=np.uint8) for r in range(3)]
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in threads]
sums = [float(g.all_reduce(np.ones(5000))[0]) for _ in range(30)]
[t.join() for t in threads]
result = len(right), all(right), set(sums)
"""
    assert window.run(code, [0, 1, 2]) == [(160, True, {3.0})] * 3


@pytest.mark.parametrize("streams", [False, True])
def test_a_killed_owner_is_named_at_once(victims: Any, tmp_path: Path, streams: bool) -> None:
    """SIGKILL of the owner ends the read that waits for it, and every later one, with PeerDied in under 1 s."""
    opened_over_streams(victims, 3, tmp_path) if streams else opened(victims, 3)
    loop = "while True:\n        w.read(2, 0, 1_000_000)"
    victims.start(TIMED.format(call=loop), [0, 1], {})
    time.sleep(0.3)
    killed = time.monotonic()
    victims.ranks[2].process.send_signal(signal.SIGKILL)
    for answer in victims.collect([0, 1]):
        assert isinstance(answer, PeerDied) and answer.facts["peer"] == 2, answer
        assert answer.facts["operation"] == "read"
        assert (
            "mac3, cable mac1:127.0.0.1 to mac3" in str(answer) or answer.facts["rank"] == 1
        ) or not streams
    assert time.monotonic() - killed < 1.0
    (late,) = victims.run("w.read(2, 0, 5)", [0])
    assert isinstance(late, PeerDied)
    assert victims.run("result = w.read(1, 0, 9).tobytes()", [0]) == [pattern(1)[:9].tobytes()]


def test_a_stopped_owner_is_a_timeout_and_may_come_back(victims: Any) -> None:
    """SIGSTOP: the deadline decides and names the rank; once it runs again it answers, and old answers are dropped."""
    opened(victims, 2)
    victims.ranks[1].process.send_signal(signal.SIGSTOP)
    for length in (10, 1_000_000):
        call = f"w.read(1, 0, {length}, deadline_s=0.4)"
        (answer,) = victims.run(TIMED.format(call=call), [0])
        assert isinstance(answer, FabricTimeout) and answer.facts["absent"] == [1], answer
        assert answer.facts["length"] == length and answer.facts["received"] == 0 and "rank 1" in str(answer)
        assert 0.35 < took(victims, 0) < 1.0
    victims.ranks[1].process.send_signal(signal.SIGCONT)
    for _ in range(3):
        assert victims.run(READ, [0], owner=1, offset=5, length=500_000) == [pattern(1)[5:500_005].tobytes()]


def test_a_silent_node_is_named_with_its_cable(victims: Any, tmp_path: Path) -> None:
    """A stopped node is silent: PeerSilent after a second of it, FabricTimeout where the deadline comes first."""
    opened_over_streams(victims, 2, tmp_path)
    victims.ranks[1].process.send_signal(signal.SIGSTOP)
    for deadline_s, kind, least, most in ((0.3, FabricTimeout, 0.25, 0.9), (15.0, PeerSilent, 0.3, 4.0)):
        (answer,) = victims.run(TIMED.format(call=f"w.read(1, 0, 64, deadline_s={deadline_s})"), [0])
        assert type(answer) is kind, answer
        assert "rank 1 on mac2, cable mac1:127.0.0.1 to mac2:127.0.0.1" in str(answer)
        assert "\n" not in str(answer) and least < took(victims, 0) < most
    (answer,) = victims.run("result = w.carrier(0), w.carrier(1)", [0])
    assert answer == ("self", "tcp")


@pytest.mark.parametrize("streams", [False, True])
def test_closing_while_others_read(victims: Any, tmp_path: Path, streams: bool) -> None:
    """A window, then its group, closed under readers: each gets one line, nothing hangs, what was read is right."""
    opened_over_streams(victims, 3, tmp_path) if streams else opened(victims, 3)
    code = """
reads = 0
while True:
    assert (w.read(2, 0, exposed) == expected).all()
    reads += 1
"""
    set_up = "expected = np.random.default_rng([7, 2]).integers(0, 256, exposed, dtype=np.uint8)"
    victims.run(set_up, [0, 1])
    victims.start(code, [0, 1], {})
    time.sleep(0.3)
    (answer,) = victims.run("w.close()\ndel memory", [2])
    assert answer is None
    for answer in victims.collect([0, 1]):
        assert type(answer) is FabricError and "closed" in str(answer) and "\n" not in str(answer)
    assert min(victims.run("result = reads", [0, 1])) > 0
    victims.run("v = g.expose(np.arange(1 << 20))", [0, 1, 2])
    victims.start("while True:\n    v.read(2, 0, 1 << 20)", [0, 1], {})
    time.sleep(0.3)
    assert victims.run("g.close()\nresult = v.is_open", [2]) == [False]
    for answer in victims.collect([0, 1]):
        assert isinstance(answer, PeerDied) and answer.facts["peer"] == 2
    (answer,) = victims.run("v.read(0, 0, 8)", [2])
    assert type(answer) is FabricError and "closed group" in str(answer)
    assert victims.run("v.close(), g.close()", [0, 1, 2]) == [None] * 3


def test_a_read_that_waits_ends_with_its_own_group(victims: Any) -> None:
    """close() of the group in another thread, interrupt() and Ctrl-C each end a read that is not answered."""
    opened(victims, 2)
    victims.ranks[1].process.send_signal(signal.SIGSTOP)
    code = "import threading\nthreading.Timer(0.2, {act}).start()\nw.read(1, 0, 10, deadline_s=30.0)"
    stopped = "try:\n    w.read(1, 0, 10, deadline_s=30.0)\nexcept KeyboardInterrupt:\n    result = 'stopped'"
    victims.start(stopped, [0], {})
    time.sleep(0.3)
    victims.ranks[0].process.send_signal(signal.SIGINT)
    assert victims.collect([0]) == ["stopped"]
    began = time.monotonic()
    (answer,) = victims.run(code.format(act="g.interrupt"), [0])
    assert isinstance(answer, Interrupted)
    victims.group(1, fresh=True)
    victims.run("import gc\ng = groups[key]", [0], key="1 auto 20.0")
    assert time.monotonic() - began < 5.0


def test_a_group_closed_by_another_thread_ends_the_read(victims: Any) -> None:
    """The read that waits raises FabricError, and only then the group's memory goes."""
    opened(victims, 2)
    victims.ranks[1].process.send_signal(signal.SIGSTOP)
    code = "import threading\nthreading.Timer(0.2, g.close).start()\nw.read(1, 0, 10, deadline_s=30.0)"
    (answer,) = victims.run(TIMED.format(call=code.replace("\n", "\n    ")), [0])
    assert type(answer) is FabricError and "closed" in str(answer)
    assert took(victims, 0) < 2.0
    assert victims.run("result = g.is_open, w.is_open\nw.close()", [0]) == [(False, False)]


def test_an_idle_window_takes_no_time(window: Any) -> None:
    """The service thread sleeps while nothing is asked: a second of idling costs under 20 ms of processor time."""
    code = "import time\nbefore = time.process_time()\ntime.sleep(1.0)\nresult = time.process_time() - before"
    assert max(window.run(code, [0, 1, 2])) < 0.02


def test_times_are_raw_and_by_size(window: Any) -> None:
    """One sample a read, for the sizes that the owner exposes; the bandwidth is of the median."""
    code = """
t = w.times(1, [0, 4096, 65537, 1 << 30], iterations=7)
result = t.rank, t.carrier, {size: times.tolist() for size, times in t.times_us.items()}, t.bandwidth_bytes_per_s()
"""
    ((rank, carrier, times, bandwidth),) = window.run(code, [0])
    assert (rank, carrier) == (1, "local") and list(times) == [0, 4096, 65537]
    assert all(len(samples) == 7 and min(samples) > 0 for samples in times.values())
    assert bandwidth[65537] == pytest.approx(65537 / np.median(times[65537]) * 1e6)


CABLE = """
from pathlib import Path
from tbkit.fabric import Cable, Cabling, End, form, over_folder
cable = Cable(End(0, addresses[0], "rdma_en2"), End(1, addresses[1], "rdma_en3"), carrier)
exchange = over_folder(Path(folder), rank, size)
g = form(Cabling(["mac1", "mac2"], [cable]), rank, exchange, deadline_s=20.0, silence_s=1.0)
"""
MOCK = """
import os
os.environ["TBKIT_LIBRDMA"], os.environ["TBKIT_MOCK_RULES"] = library, "page=4096"
os.environ["TBKIT_MOCK"] = (
    f"namespace={namespace}; node=mac{rank + 1}; cables=mac1:rdma_en2/127.0.0.1-mac2:rdma_en3/127.0.0.2"
)
"""


def mock_library() -> Path | None:
    from importlib.metadata import files

    found = [path for path in files("tbkit") or [] if path.name.startswith("libtbmock.")]
    return Path(str(found[0].locate())) if found else None


@pytest.mark.skipif(mock_library() is None, reason="the mock librdma needs <infiniband/verbs.h> to be built")
def test_reads_beside_queue_pairs(victims: Any, tmp_path: Path) -> None:
    """Where queue pairs carry the collectives, reads take a stream of their own over the cable, and say so."""
    values = {"library": str(mock_library()), "namespace": tmp_path.name, "folder": str(tmp_path)}
    where = {"addresses": ["127.0.0.1", "127.0.0.2"], "carrier": "verbs", "seed": 7, "exposed": BYTES}
    answers = victims.run(MOCK + CABLE + OPEN, [0, 1], **values, **where)
    assert answers == [None, None], answers
    code = """
import zlib, threading
sums = []
thread = threading.Thread(target=lambda: sums.extend(float(g.all_reduce(np.ones(3000))[0]) for _ in range(20)))
thread.start()
whole = {zlib.crc32(w.read(1 - rank, 0, exposed)) for _ in range(10)}
thread.join()
result = w.carrier(1 - rank), whole, set(sums)
g.barrier()
w.close(), g.close()
"""
    for rank, answer in enumerate(victims.run(code, [0, 1])):
        assert answer == ("tcp", {zlib.crc32(pattern(1 - rank))}, {2.0})


@pytest.fixture
def cabled(tmp_path: Path) -> Any:
    """Two network namespaces, each with an end of one virtual cable: 10.77.0.1 and 10.77.0.2."""
    names = [f"{tmp_path.parent.name}-{end}"[-15:] for end in "ab"]
    steps = [f"netns add {name}" for name in names]
    steps.append(f"link add va netns {names[0]} type veth peer name vb netns {names[1]}")
    for number, (name, device) in enumerate(zip(names, ("va", "vb"), strict=True), 1):
        steps += [f"-n {name} addr add 10.77.0.{number}/24 dev {device}", f"-n {name} link set {device} up"]
    for step in steps:
        ip(step)
    yield names
    for name in names:
        ip(f"netns del {name}")


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=20)


def may_cable() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = (
        subprocess.run(["ip", "netns", "add", "tbkit-may"], capture_output=True, timeout=20).returncode == 0
    )
    return made and subprocess.run(["ip", "netns", "del", "tbkit-may"], timeout=20).returncode == 0


@pytest.mark.skipif(not may_cable(), reason="needs root on Linux, and ip netns, to make a cable")
def test_a_pulled_cable_is_named(victims: Any, tmp_path: Path, cabled: list[str]) -> None:
    """With the link down nothing closes any connection: silence is told after a second, with both ends of the cable."""
    enter = "import ctypes, os\nassert ctypes.CDLL(None).setns(os.open(f'/run/netns/{name}', os.O_RDONLY), 0) == 0"
    where = {"addresses": ["10.77.0.1", "10.77.0.2"], "carrier": "tcp", "folder": str(tmp_path)}
    assert victims.run(enter, [0, 1], {"name": cabled}) == [None, None]
    answers = victims.run(CABLE + OPEN, [0, 1], seed=7, exposed=BYTES, **where)
    assert answers == [None, None], answers
    loop = "while True:\n        w.read(1, 0, exposed)\n        began = time.monotonic()"
    victims.start(TIMED.format(call=loop), [0], {})
    time.sleep(0.5)
    ip(f"-n {cabled[1]} link set vb down")
    (answer,) = victims.collect([0])
    assert isinstance(answer, PeerSilent) and answer.facts["peer"] == 1, answer
    assert "rank 1 on mac2, cable mac1:rdma_en2 to mac2:rdma_en3" in str(answer)
    assert 0.8 < took(victims, 0) < 4.0
