"""Shaped links: nothing comes earlier than the profile allows, everything comes, and what cannot hold is refused.

Lower bounds are exact, for the two ranks share the clock; upper ones only tell a shape that holds from one that does
not, as other programs may hold the cores.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tbkit import _kernels
from tbkit.errors import FabricError, FabricTimeout, Interrupted, UsageError
from tbkit.fabric import Cable, Cabling, End, LinkShape
from tbkit.fabric.shape import on_cables, on_one_node, rows

pytestmark = pytest.mark.skipif(_kernels.cores_free() < 2, reason="a shaped link needs a core for each end")

MS = 1000.0  # µs
SHM = "from tbkit.fabric import join\ng = join(name, rank, size, 20.0, shape=shape)"
TCP = """
from pathlib import Path
from tbkit.fabric import Cabling, form, over_folder
cabling = Cabling.mesh(["a", "b"], ["127.0.0.1"] * 2)
g = form(cabling, rank, over_folder(Path(folder), rank, size), deadline_s=20.0, shape=shape)
"""
FORM = {"shm": SHM, "tcp": TCP}


def formed(ranks: Any, carrier: str, name: str, folder: Path, shape: Any, size: int = 2) -> list[int]:
    """A shaped group ``g`` of the first ranks; they."""
    members = list(range(size))
    answers = ranks.run(FORM[carrier], members, name=name, folder=str(folder), shape=shape)
    assert answers == [None] * size
    return members


@pytest.mark.parametrize("carrier", FORM)
@pytest.mark.parametrize(
    ("latency_us", "bandwidth", "size"), [(5, 5e8, 8), (300, math.inf, 0), (40, 1e8, 100_000)]
)
def test_no_message_is_earlier_than_latency_and_bytes(
    pool: Any, name: str, tmp_path: Path, carrier: str, latency_us: float, bandwidth: float, size: int
) -> None:
    """Each one-way time is at least latency + bytes / bandwidth, and the best is little above it."""
    ranks = formed(pool, carrier, name, tmp_path, LinkShape(latency_us, bandwidth))
    code = "result = g.pingpong(1 - rank, payload, 100, deadline_s=30.0)\ng.close()"
    least = latency_us + size / bandwidth * 1e6 - 1e-6  # of the division
    us = pool.run(code, ranks, payload=size)[0]  # of the rank that begins: it reads the clock before it sends
    assert us.min() >= least
    assert us.min() < 2 * least + 2 * MS


@pytest.mark.parametrize("carrier", FORM)
def test_a_link_is_one_serial_line_each_way(pool: Any, name: str, tmp_path: Path, carrier: str) -> None:
    """A window takes its bytes over the bandwidth, and what is under way is bound by the link, not by its slots."""
    ranks = formed(pool, carrier, name, tmp_path, LinkShape(5 * MS, 1e8))
    code = "result = g.window(1 - rank, 1 << 16, 64, 3, deadline_s=30.0)\ng.close()"
    least = (1 << 22) / 1e8 * 1e6 + 2 * 5 * MS
    (us, _) = pool.run(code, ranks)
    assert us.min() >= least
    assert us.min() < 3 * least  # eight slots a latency would be 90 ms


@pytest.mark.parametrize("carrier", FORM)
def test_collectives_over_shaped_links_give_the_same_bits(
    pool: Any, name: str, tmp_path: Path, carrier: str
) -> None:
    """all_reduce is bit for bit that of plain links, from one element to many frames."""
    code = """
bits = [make_bits("float32", count, 5, rank) for count in (1, 600, 40_001, 300_000)]
result = bool(g.shapes), [g.all_reduce(as_array("float32", x)).view(np.uint32) for x in bits]
"""
    wanted = pool.run(code, pool.group(2))
    ranks = formed(pool, carrier, name, tmp_path, LinkShape(20, 4e9))
    for (shaped, got), (plain, want) in zip(pool.run(code, ranks), wanted, strict=True):
        assert shaped and not plain
        assert all((a == b).all() for a, b in zip(got, want, strict=True))
    pool.run("g.barrier(); g.close()", ranks)


def test_only_the_pairs_that_are_named_are_shaped(pool: Any, name: str, tmp_path: Path) -> None:
    """A mapping shapes its pairs, in either order of ranks; other links of the group stay as they are."""
    slow = LinkShape(30 * MS, 1e9)
    ranks = formed(pool, "shm", name, tmp_path, {(1, 0): slow}, size=3)
    code = """
us = [0.0, 0.0]
if rank < 2:
    us[0] = float(g.pingpong(1 - rank, 8, 5).min())
if rank != 1:
    us[1] = float(g.pingpong(2 - rank, 8, 200).min())
result = us, g.shapes
g.close()
"""
    (shaped, plain), shapes = pool.run(code, ranks)[0]
    assert shaped >= 30 * MS > plain
    assert shapes == {(0, 1): slow}


@pytest.mark.parametrize("carrier", FORM)
def test_a_frame_on_its_way_outlives_its_sender(pool: Any, name: str, tmp_path: Path, carrier: str) -> None:
    """Who sends its last frame and leaves has sent it: it comes, at its time."""
    ranks = formed(pool, carrier, name, tmp_path, LinkShape(150 * MS, 1e9))
    code = """
import time
if rank == 0:
    result = time.monotonic()
    g.send(np.full(3, 5.0), 1)
    g.close()
else:
    came = g.recv(np.zeros(3), 0).tolist()
    result = time.monotonic(), came
    g.close()
"""
    sent, (came, values) = pool.run(code, ranks)
    assert values == [5.0] * 3 and came - sent >= 0.15


def test_the_wait_for_a_known_moment_is_slept(pool: Any, name: str) -> None:
    """Between arrival and due time the core is free, under every policy, spin too."""
    code = """
import time
from tbkit.fabric import LinkShape, join
g = join(name, rank, size, 20.0, policy, LinkShape(400e3, 1e9))
g.send(np.zeros(1), 1 - rank)
cpu, wall = time.process_time(), time.monotonic()
time.sleep(0.05)
g.recv(np.zeros(1), 1 - rank)
result = time.process_time() - cpu, time.monotonic() - wall
g.close()
"""
    for policy in ("auto", "spin", "futex"):
        for cpu, wall in pool.run(code, [0, 1], name=f"{name}-{policy}", policy=policy):
            assert wall > 0.2 and cpu < 0.1, policy


def test_a_deadline_and_an_interrupt_end_the_wait_for_a_moment(pool: Any, name: str, tmp_path: Path) -> None:
    """A frame that is due after the deadline is a FabricTimeout then, and an interrupt is heard before it is due."""
    ranks = formed(pool, "shm", name, tmp_path, LinkShape(900 * MS, 1e9))
    send = "g.send(np.zeros(1), 1) if rank == 0 else None"
    pool.run(send, ranks)
    begun = time.monotonic()
    (answer,) = pool.run("g.recv(np.zeros(1), 0, deadline_s=0.1)", [1])
    assert isinstance(answer, FabricTimeout) and answer.facts["absent"] == [0]
    ranks = formed(pool, "shm", f"{name}-b", tmp_path, LinkShape(900 * MS, 1e9))
    pool.run(send, ranks)
    pool.start("g.recv(np.zeros(1), 0)", [1], {})
    pool.run("g.interrupt([1])", [0])
    (answer,) = pool.collect([1])
    assert isinstance(answer, Interrupted)
    assert time.monotonic() - begun > 0.1
    pool.run("g.close()", ranks)


def test_ranks_with_other_shapes_form_no_group(pool: Any, name: str) -> None:
    """The ranks compare all shapes as they join; a rank without one is told as well."""
    code = "from tbkit.fabric import join\njoin(name, rank, 2, 10.0, shape=shape)"
    shapes = [[LinkShape(5, 1e9), LinkShape(5, 2e9)], [LinkShape(5, 1e9), None]]
    for turn, each in enumerate(shapes):
        for answer in pool.run(code, [0, 1], {"shape": each}, name=f"{name}-{turn}"):
            assert type(answer) is FabricError and "same shape" in str(answer)


def test_streams_with_a_shape_at_one_end_are_found_at_the_first_frame(pool: Any, tmp_path: Path) -> None:
    """A stamp that nobody expects, and one that is missing, are a corrupt frame: never a link of another speed."""
    code = TCP + "result = g.barrier(deadline_s=5.0)"
    answers = pool.run(code, [0, 1], {"shape": [LinkShape(5, 1e9), None]}, folder=str(tmp_path))
    assert all(isinstance(answer, FabricError) for answer in answers)
    assert any("0x7b1d" in str(answer) for answer in answers)


@pytest.mark.parametrize(
    "numbers", [(-1, 1e9), (math.nan, 1e9), (math.inf, 1e9), (2e6, 1e9), (5, 0), (5, -1e9), (5, math.nan)]
)
def test_numbers_that_cannot_be_are_refused(numbers: tuple[float, float]) -> None:
    """Latency is 0 to 1 s, bandwidth at least a byte a second."""
    with pytest.raises(UsageError, match="link shape"):
        LinkShape(*numbers)


def test_more_ranks_than_cores_are_refused() -> None:
    """The reason is named: without a core each no moment is met."""
    with pytest.raises(UsageError, match="only virtual deadlines"):
        on_one_node(LinkShape(5, 1e9), _kernels.cores_free() + 1)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({(0, 2): LinkShape(5, 1e9)}, "a link joins"),
        ({(0, 0): LinkShape(5, 1e9)}, "a link joins"),
        ({(0, 1): LinkShape(5, 1e9), (1, 0): LinkShape(6, 1e9)}, "one shape a pair"),
    ],
)
def test_pairs_that_are_none_are_refused(shape: Any, words: str) -> None:
    """A pair is two ranks of the group, and has one shape."""
    with pytest.raises(UsageError, match=words):
        on_one_node(shape, 2)


def test_cables_that_cannot_be_shaped_are_refused() -> None:
    """Verbs, relayed pairs, pairs of two cables, and ends that are not on this machine, each with its reason."""
    shape = LinkShape(5, 1e9)
    here = End(0, "127.0.0.1", "rdma_en2"), End(1, "127.0.0.1", "rdma_en3")
    with pytest.raises(UsageError, match="verbs"):
        on_cables(shape, Cabling(["a", "b"], [Cable(*here, "verbs")]))
    with pytest.raises(UsageError, match="this machine"):
        on_cables(shape, Cabling(["a", "b"], [Cable(End(0, "127.0.0.1"), End(1, "192.0.2.7"))]))
    two = [Cable(End(0, "127.0.0.1", f"a{n}"), End(1, "127.0.0.1", f"b{n}")) for n in (1, 2)]
    with pytest.raises(UsageError, match="one cable between"):
        on_cables(shape, Cabling(["a", "b"], two))
    line = [Cable(End(a, "127.0.0.1"), End(b, "127.0.0.1")) for a, b in ((0, 1), (1, 2))]
    with pytest.raises(UsageError, match="a cable for every pair"):
        on_cables({(0, 1): shape}, Cabling(["a", "b", "c"], line))


def test_rows_are_rounded_towards_slow() -> None:
    """Latency in whole nanoseconds, rounded up; an unbounded link costs nothing a byte."""
    assert rows({(0, 1): LinkShape(0.0015, math.inf)}) == [(0, 1, 2, 0.0)]
    assert rows({(1, 2): LinkShape(5, 8e9), (0, 1): LinkShape(1, 1e9)}) == [
        (0, 1, 1000, 1.0),
        (1, 2, 5000, 0.125),
    ]


def test_what_a_shape_says_of_itself() -> None:
    """Name, latency and bandwidth."""
    assert str(LinkShape(5, 7e9, "tb5-rdma")) == "tb5-rdma (5 µs, 7 GB/s)"
    assert np.isclose(LinkShape(5, 7e9).row()[1], 1 / 7)
