"""``fabric`` in an engine's namespace: the arrays of a user's call, through shared memory, to the rank and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tbkit.errors import BufferRejected, FabricError, FabricTimeout
from tbkit.rank.handle import Fabric
from tbkit.rank.scratch import Scratch

KINDS = ("float16", "float32", "float64", "int32")


class Two:
    """Two handles, called at once as two engines would."""

    def __init__(self, ranks: Any) -> None:
        ranks.join(2, world=True)
        self.handles = [Fabric(one, i, 2) for i, one in enumerate(ranks.supervisors[:2])]
        self.threads = ThreadPoolExecutor(2)

    def __call__(self, action: Callable[[Fabric], Any]) -> list[Any]:
        return [one.result(20.0) for one in [self.threads.submit(action, h) for h in self.handles]]


@pytest.fixture(scope="module")
def two(ranks: Any) -> Iterator[Two]:
    made = Two(ranks)
    yield made
    made.threads.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_of_every_type_is_reduced(two: Two, kind: str) -> None:
    """Sum, max and min of each type that is taken: a new array of the same type and shape on each rank."""
    mine = [np.arange(6).reshape(2, 3).astype(kind) * (r + 1) for r in range(2)]
    for op, wanted in (("sum", mine[0] + mine[1]), ("max", mine[1]), ("min", mine[0])):
        for got in two(lambda f, op=op: f.all_reduce(mine[f.rank], op)):
            assert got.dtype == kind and np.array_equal(got, wanted)
    assert mine[0].sum() == np.arange(6).sum(), "the input stays as it was"


@pytest.mark.parametrize("kind", [*KINDS[:2], "int32", "bfloat16"])
def test_mlx_of_every_type_comes_back_as_mlx(two: Two, kind: str) -> None:
    """mlx arrays, bfloat16 too, are summed in their type and come back as mlx of that type."""
    dtype = getattr(mx, kind)
    mine = [mx.array([1.5, 2.0, -3.0]).astype(dtype) * (r + 1) for r in range(2)]
    mx.eval(mine)
    for got in two(lambda f: f.all_reduce(mine[f.rank])):
        assert got.dtype == dtype and mx.array_equal(got, mine[0] + mine[1])
    for got in two(lambda f: f.all_gather(mine[f.rank])):
        assert got.dtype == dtype and got.shape == (2, 3) and mx.array_equal(got[1], mine[1])


def test_plain_lists_scalars_and_views_are_taken(two: Two) -> None:
    """A list, a number, a strided, a reversed and a transposed view give what their copies would."""
    table = np.arange(12.0).reshape(3, 4)
    for x in ([1.0, 2.0], 3.0, table[:, ::2], table[::-1], table.T, np.broadcast_to(np.float32(2), (3, 2))):
        for got in two(lambda f, x=x: f.all_reduce(x)):
            assert np.array_equal(got, 2 * np.asarray(x)) and got.shape == np.shape(x)


def test_an_empty_array_is_an_answer(two: Two) -> None:
    """Zero elements are reduced and gathered to zero elements."""
    assert [x.shape for x in two(lambda f: f.all_reduce(np.zeros((0, 3))))] == [(0, 3)] * 2
    assert [x.shape for x in two(lambda f: f.all_gather(np.zeros(0)))] == [(2, 0)] * 2


@pytest.mark.parametrize(
    "x",
    [
        [1, 2],
        np.zeros(2, dtype=np.int64),
        np.zeros(2, dtype=bool),
        np.zeros(2, dtype=complex),
        "text",
        mx.array([1], dtype=mx.uint8),
    ],
)
def test_other_types_are_refused_with_the_remedy(two: Two, x: Any) -> None:
    """What is not taken is a BufferRejected, a TypeError too, before the rank is asked."""
    with pytest.raises(BufferRejected, match="astype") as caught:
        two.handles[0].all_reduce(x)

    assert isinstance(caught.value, TypeError)


def test_a_large_array_after_a_small_one_and_a_growing_gather(two: Two) -> None:
    """The shared memory grows on whichever side first needs more, and what was handed out stays valid."""
    small = two(lambda f: f.all_reduce(np.full(3, 1.0 + f.rank)))
    for count in (1 << 10, 1 << 18, 1 << 21):
        large = two(lambda f, n=count: f.all_reduce(np.full(n, 1.0, dtype=np.float32)))
        gathered = two(lambda f, n=count: f.all_gather(np.full(n, float(f.rank), dtype=np.float32)))
        for one, whole in zip(large, gathered, strict=True):
            assert (one == 2.0).all() and one.size == count
            assert whole.shape == (2, count) and (whole[0] == 0).all() and (whole[1] == 1).all()
    assert all((x == 3.0).all() for x in small)


def test_broadcast_send_and_receive(two: Two) -> None:
    """Root's values everywhere; a message of the sender's values in the shape of the receiver's array."""
    assert [x.tolist() for x in two(lambda f: f.broadcast(np.full(2, f.rank + 5.0), root=1))] == [[6, 6]] * 2

    def action(f: Fabric) -> Any:
        return f.send(np.arange(4.0), dst=1) if f.rank == 0 else f.recv(np.zeros(4), src=0)

    assert two(action)[1].tolist() == [0, 1, 2, 3]


def test_a_handle_says_where_it_stands(two: Two) -> None:
    """rank, size and node are on its face."""
    assert repr(two.handles[1]) == "<fabric: rank 1 of 2 on n1>"
    assert (two.handles[1].rank, two.handles[1].size) == (1, 2)


def test_a_call_on_one_rank_alone_names_the_absent(two: Two, ranks: Any) -> None:
    """It ends at its deadline with the ranks that did not come; the group is over and says so at once."""
    with pytest.raises(FabricTimeout) as caught:
        two.handles[0].barrier(deadline_s=0.3)
    assert caught.value.facts["absent"] == [1]
    with pytest.raises(FabricError):
        two.handles[0].all_reduce(np.ones(1))
    ranks.join(2, world=True)
    assert two(lambda f: f.barrier()) == [None, None]


def test_scratch_is_seen_from_both_sides_and_grows_under_either() -> None:
    """Two mappings of the same memory: each sees what the other wrote, whichever made it larger."""
    ours = Scratch()
    theirs = Scratch(os.dup(ours.fd))
    ours.array((4,), "int32")[...] = [1, 2, 3, 4]
    assert theirs.array((4,), "int32").tolist() == [1, 2, 3, 4]
    theirs.array((100_000,), "float64")[...] = 7.0
    assert (ours.array((100_000,), "float64") == 7.0).all()
    assert ours.array((2, 2), "bfloat16").dtype == np.uint16
    os.close(theirs.fd)
    os.close(ours.fd)
