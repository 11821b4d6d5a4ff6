"""The other collectives, pairs, arrays of mlx, and what is rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbkit.errors import BufferRejected, FabricError, UsageError


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(2, 8),
    count=st.one_of(st.integers(0, 70), st.sampled_from([5000, 40001])),
    root=st.integers(0, 7),
)
def test_gather_and_broadcast_move_every_byte(pool: Any, size: int, count: int, root: int) -> None:
    """all_gather stacks the ranks' arrays in rank order; broadcast writes the root's over all."""
    code = """
x = (np.arange(count) * 7 + rank).astype(np.int32)
y = g.all_gather(x)
g.broadcast(x, root)
g.barrier()
result = (y, x)
"""
    rows = np.array([np.arange(count) * 7 + rank for rank in range(size)], dtype=np.int32).reshape(
        size, count
    )
    for gathered, sent in pool.run(code, pool.group(size), count=count, root=root % size):
        assert gathered.shape == (size, count)
        assert (gathered == rows).all() and (sent == rows[root % size]).all()


@pytest.mark.parametrize("count", [0, 1, 6, 7, 4096, 200_000])
def test_pairs_send_and_receive(pool: Any, count: int) -> None:
    """What one rank sends, the other receives, between collectives too."""
    code = """
x = np.arange(count, dtype=np.float64)
g.send(x, 1) if rank == 0 else g.recv(x := np.zeros(count), 0)
result = bool((g.all_reduce(x) == 2 * np.arange(count)).all())
"""
    assert pool.run(code, pool.group(2), count=count) == [True, True]


def test_barrier_holds_until_the_last_rank(pool: Any) -> None:
    """No rank passes a barrier before every rank has come."""
    code = """
import time
time.sleep(0.05 * rank)
came = time.monotonic()
g.barrier()
result = (came, time.monotonic())
"""
    times = pool.run(code, pool.group(4))
    assert min(passed for _, passed in times) >= max(came for came, _ in times)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
def test_mlx_arrays_in_place_and_new(pool: Any, dtype: str) -> None:
    """Evaluated, unevaluated and scalar mlx arrays are taken; a new result is an mlx array of its own."""
    pytest.importorskip("mlx.core")
    code = """
import mlx.core as mx
x = (mx.arange(576) % 7).astype(getattr(mx, dtype)) + rank
y = g.all_reduce(x)
mx.eval(x)
before = x.astype(mx.float32).tolist()
g.all_reduce(x, out=x)
rows = g.all_gather(mx.array([rank], dtype=getattr(mx, dtype)))
s = g.all_reduce(mx.array(2, dtype=getattr(mx, dtype)))
plain = [a.astype(mx.float32).tolist() for a in (y, x, rows)]
result = (type(y).__module__, str(y.dtype), before, s.item(), *plain)
"""
    expected = [float(i % 7 * 2 + 1) for i in range(576)]
    for rank, answer in enumerate(pool.run(code, pool.group(2), dtype=dtype)):
        module, name, before, scalar, new, in_place, rows = answer
        assert module.startswith("mlx") and name.endswith(dtype)
        assert new == expected and in_place == expected
        assert before == [float(i % 7 + rank) for i in range(576)]
        assert rows == [[0.0], [1.0]] and scalar == 4


REJECTED = {
    "strided": "np.zeros(8, np.float32)[::2]",
    "transposed": "np.zeros((3, 4), np.float32).T",
    "stride 0": "np.broadcast_to(np.float32(1), (4,))",
    "byte order": "np.zeros(4, '>f4')",
    "type": "np.zeros(4, np.int64)",
    "misaligned": "np.frombuffer(bytearray(17), np.float32, 4, 1)",
    "no buffer": "object()",
    "mlx stride 0": "mx.broadcast_to(mx.array([1.0, 2.0]), (3, 2))",
    "mlx transposed": "mx.zeros((3, 4)).T",
}


@pytest.mark.parametrize("what", REJECTED)
def test_arrays_that_are_not_dense_are_rejected(pool: Any, what: str) -> None:
    """Strided, transposed, broadcast, swapped and foreign arrays raise BufferRejected and leave the group
    whole."""
    code = f"""
import mlx.core as mx
g.all_reduce({REJECTED[what]}, np.zeros(4, np.float32))
"""
    ranks = pool.group(2)
    for answer in pool.run(code, ranks):
        assert isinstance(answer, BufferRejected) and answer.remedy
    assert [float(v[0]) for v in pool.run("result = g.all_reduce(np.ones(1))", ranks)] == [2.0, 2.0]


@pytest.mark.parametrize("view", ["w.T", "w[:, ::2]", "mx.broadcast_to(mx.array([1.0, 2.0]), (3, 2))"])
def test_views_are_rejected_in_place_with_shape_and_strides(pool: Any, view: str) -> None:
    """The message has the shape, the strides and the way to a dense copy."""
    code = f"import mlx.core as mx\nw = np.zeros((3, 4), np.float32)\nx = {view}\ng.all_reduce(x, out=x)"
    for answer in pool.run(code, pool.group(2)):
        assert isinstance(answer, BufferRejected)
        assert "strides" in str(answer) and "mx.contiguous" in str(answer)


@pytest.mark.parametrize(
    "call",
    [
        "x = np.zeros(4, np.float32); x.flags.writeable = False; g.all_reduce(x, out=x)",
        "x = np.zeros(4, np.float32); x.flags.writeable = False; g.recv(x, 1 - rank)",
        "g.all_reduce(np.zeros(4, np.float32), np.zeros(5, np.float32))",
        "g.all_reduce(np.zeros(4, np.float32), np.zeros(4, np.int32))",
        "x = np.zeros(8, np.float32); g.all_reduce(x[:4], x[2:6])",
        "g.all_gather(np.zeros(4, np.float32), np.zeros((3, 4), np.float32))",
        "g.all_reduce(np.zeros(4, np.uint16))",
        "g.all_reduce(np.zeros(4, np.float32), dtype='bfloat16')",
    ],
)
def test_wrong_targets_are_rejected(pool: Any, call: str) -> None:
    """A read-only target, one of another size or type, and a partial overlap raise BufferRejected."""
    assert all(isinstance(answer, BufferRejected) for answer in pool.run(call, pool.group(2)))


@pytest.mark.parametrize(
    "call",
    [
        "g.send(np.zeros(1), rank)",
        "g.send(np.zeros(1), 2)",
        "g.broadcast(np.zeros(1), -1)",
        "g.all_reduce(np.zeros(1), op='mean')",
        "g.all_reduce(np.zeros(1), algorithm='ring')",
        "g.barrier(deadline_s=-1.0)",
        "join('x', 0, 17)",
        "join('x', 2, 2)",
        "join('x', 0, 1, policy='nap')",
    ],
)
def test_arguments_that_cannot_be_are_usage_errors(pool: Any, call: str) -> None:
    """Ranks, reductions, algorithms, policies and deadlines outside their lists raise UsageError."""
    code = f"from tbkit.fabric import join\n{call}"
    assert all(isinstance(answer, UsageError) for answer in pool.run(code, pool.group(2)))


def test_counts_tell_calls_and_payload_bytes(pool: Any) -> None:
    """counts holds the finished operations and this rank's bytes in them; last_operation names the last."""
    code = """
from tbkit.fabric import join
with join(name, rank, size) as h:
    h.all_reduce(np.zeros(10, np.float32)), h.all_reduce(np.zeros(2, np.float64)), h.barrier()
    last = h.last_operation
    result = ({k: (c.calls, c.bytes) for k, c in h.counts.items()}, last.operation, last.sequence, last.done)
"""
    for answer in pool.run(code, [0, 1], name=f"tbt-counts-{id(pool)}"):
        assert answer == ({"barrier": (1, 0), "all_reduce": (2, 56)}, "barrier", 3, True)


def test_loops_keep_every_sample(pool: Any) -> None:
    """Ping-pong and window loops return one positive time an iteration, in microseconds."""
    code = """
p, b = g.pingpong(1 - rank, 8, 500), g.bare_pingpong(1 - rank, 500)
big, w = g.pingpong(1 - rank, 100_000, 20), g.window(1 - rank, 4096, 16, 30)
result = [(len(s), float(s.min()) > 0) for s in (p, b, big, w)]
"""
    assert pool.run(code, pool.group(2)) == [[(500, True), (500, True), (20, True), (30, True)]] * 2


def test_a_closed_group_and_a_second_thread_are_refused(pool: Any, name: str) -> None:
    """Calls after close() say so; so does a call while another thread's waits."""
    code = """
import threading, time
from tbkit.fabric import join
from tbkit.errors import FabricError
h = join(name, rank, size)
said = []
if rank == 0:
    thread = threading.Thread(target=h.barrier)
    thread.start(), time.sleep(0.1)
    try:
        h.barrier()
    except FabricError as error:
        said.append(str(error))
    thread.join()
else:
    time.sleep(0.3), h.barrier()
h.close(), h.close()
try:
    h.barrier()
except FabricError as error:
    said.append(str(error))
result = said
"""
    first, second = pool.run(code, [0, 1], name=name)
    assert "one thread" in first[0] and "closed" in first[1] and "closed" in second[0]


def test_a_waiting_call_lets_other_threads_run(pool: Any) -> None:
    """A blocked call does not hold the GIL."""
    code = """
import threading, time
ticks, stop = [0], threading.Event()
def tick():
    while not stop.is_set():
        ticks[0] += 1
        time.sleep(0.001)
thread = threading.Thread(target=tick)
thread.start()
if rank == 1:
    time.sleep(0.4)
before = ticks[0]
g.barrier()
result = ticks[0] - before
stop.set(), thread.join()
"""
    assert pool.run(code, pool.group(2))[0] > 50


def test_a_forked_child_leaves_for_nobody(pool: Any) -> None:
    """A child that inherits the handle and closes it does not take its parent out of the group."""
    code = """
import os
child = os.fork()
if child == 0:
    g.close()
    os._exit(0)
os.waitpid(child, 0)
result = float(g.all_reduce(np.ones(1))[0])
"""
    assert pool.run(code, pool.group(2)) == [2.0, 2.0]


def test_names_and_ranks_are_taken_once(pool: Any, name: str) -> None:
    """A second process with the same rank, or another size, is refused; the others still join."""
    code = """
from tbkit.fabric import join
import time
if first:
    h = join(name, which, 2, 10.0)
    result = h.size
    h.close()
else:
    time.sleep(wait)
    join(name, which, of, 5.0)
"""
    each = {
        "first": [True, False, False, True],
        "which": [0, 0, 1, 1],
        "of": [2, 2, 3, 2],
        "wait": [0.0, 0.3, 0.4, 0.0],
    }
    late = "import time; time.sleep(0.8 if rank == 3 else 0.0)\n"
    one, two, three, four = pool.run(late + code, [0, 1, 2, 3], each=each, name=name)
    assert one == 2 and four == 2
    assert isinstance(two, FabricError) and "taken" in str(two)
    assert isinstance(three, FabricError) and "same size" in str(three)
