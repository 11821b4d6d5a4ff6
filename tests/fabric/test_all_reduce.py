"""Reductions give the bits of the stated rule, on every rank, whatever the algorithm."""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CANONICAL = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}
COUNTS = st.one_of(st.integers(0, 40), st.sampled_from([511, 513, 1023, 4097, 16385, 70001]))
CODE = """
x = as_array(kind, make_bits(kind, count, seed, rank))
out = x if in_place else np.empty_like(x)
back = g.all_reduce(x, out, op, algorithm=algorithm, dtype=kind)
assert back is out
result = out.tobytes()
"""


def widen(kind: str, bits: np.ndarray) -> np.ndarray:
    if kind == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    values = bits.view({"int32": np.int32}.get(kind, kind))
    return values.astype(np.float32) if kind == "float16" else values


def narrow(kind: str, values: np.ndarray) -> np.ndarray:
    if kind == "int32":
        return values.view(np.uint32)
    nan = np.isnan(values)
    if kind == "bfloat16":
        wide = values.view(np.uint32).astype(np.uint64)
        bits = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        bits = values.astype(kind).view(
            {"float16": np.uint16, "float32": np.uint32, "float64": np.uint64}[kind]
        )
    return np.where(nan, np.array(CANONICAL[kind], dtype=bits.dtype), bits)


def extreme(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    chosen = (np.maximum if op == "max" else np.minimum)(a, b)
    if a.dtype == np.int32:
        return chosen
    both_zero = (a == 0) & (b == 0)
    negative = (np.signbit(a) & np.signbit(b)) if op == "max" else (np.signbit(a) | np.signbit(b))
    return np.where(both_zero, np.where(negative, -0.0, 0.0), chosen).astype(a.dtype)


def reference(kind: str, op: str, inputs: list[np.ndarray]) -> bytes:
    """The rule, in numpy: raw inputs in ascending rank order, 16-bit types in float32, rounded once."""
    with np.errstate(all="ignore"):
        total = widen(kind, inputs[0])
        for bits in inputs[1:]:
            total = total + widen(kind, bits) if op == "sum" else extreme(op, total, widen(kind, bits))
        return narrow(kind, total).tobytes()


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(2, 8),
    kind=st.sampled_from(["float16", "bfloat16", "float32", "float64", "int32"]),
    op=st.sampled_from(["sum", "max", "min"]),
    algorithm=st.sampled_from(["auto", "direct", "scatter"]),
    count=COUNTS,
    seed=st.integers(0, 1 << 30),
    in_place=st.booleans(),
)
def test_bits_follow_the_rule_on_every_rank(
    pool: Any,
    rules: Any,
    size: int,
    kind: str,
    op: str,
    algorithm: str,
    count: int,
    seed: int,
    in_place: bool,
) -> None:
    """All ranks hold the reference's bits for every algorithm, size, type, reduction and number of ranks."""
    facts = {
        "kind": kind,
        "op": op,
        "algorithm": algorithm,
        "count": count,
        "seed": seed,
        "in_place": in_place,
    }
    answers = pool.run(CODE, pool.group(size), **facts)
    expected = reference(kind, op, [rules.make_bits(kind, count, seed, rank) for rank in range(size)])
    assert [answer == expected for answer in answers] == [True] * size


@pytest.mark.parametrize("count", [1 << 20, (1 << 20) + 7])
@pytest.mark.parametrize(
    ("size", "algorithm"), [(2, "direct"), (2, "scatter"), (3, "scatter"), (4, "direct")]
)
def test_large_arrays_go_through_the_pipeline(
    pool: Any, rules: Any, size: int, algorithm: str, count: int
) -> None:
    """Arrays of many frames, odd lengths too, come out whole."""
    facts = {
        "kind": "float32",
        "op": "sum",
        "algorithm": algorithm,
        "count": count,
        "seed": 1,
        "in_place": False,
    }
    answers = pool.run(CODE, pool.group(size), **facts)
    expected = reference(
        "float32", "sum", [rules.make_bits("float32", count, 1, rank) for rank in range(size)]
    )
    assert all(answer == expected for answer in answers)


@pytest.mark.parametrize("policy", ["spin", "yield", "futex"])
def test_every_waiting_policy_gives_the_same(pool: Any, rules: Any, policy: str) -> None:
    """A forced waiting policy changes times and nothing else, and says what it is."""
    facts = {"kind": "bfloat16", "op": "sum", "algorithm": "auto", "count": 1152, "seed": 5, "in_place": True}
    ranks = pool.group(2, policy)
    expected = reference("bfloat16", "sum", [rules.make_bits("bfloat16", 1152, 5, rank) for rank in range(2)])
    assert pool.run(CODE, ranks, **facts) == [expected] * 2
    assert pool.run("result = (g.policy, g.policy_resolved)", ranks) == [(policy, policy)] * 2


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="sets the x86 control word"
)
def test_a_thread_that_flushes_small_numbers_gives_the_same_bits(pool: Any) -> None:
    """A library that had small numbers flushed to zero in one rank's thread does not part the ranks."""
    code = """
import ctypes, struct
x, y = np.full(3, 1e-42, np.float32), np.empty(3, np.float32)
libm, state = ctypes.CDLL("libm.so.6"), ctypes.create_string_buffer(32)
libm.fegetenv(state)
usual = state.raw
if rank == 0:
    state.raw = usual[:28] + struct.pack("<I", struct.unpack("<I", usual[28:])[0] | 0x8040)
    libm.fesetenv(state)
g.all_reduce(x, y, algorithm=algorithm)
flushed = float(x[0] * np.float32(1.0))
state.raw = usual
libm.fesetenv(state)
result = (y.tobytes(), flushed == 0.0)
"""
    expected = (np.full(3, 1e-42, np.float32) * 2).tobytes()
    for algorithm in ("direct", "scatter"):
        answers = pool.run(code, pool.group(2), algorithm=algorithm)
        assert answers == [(expected, True), (expected, False)]


def test_results_without_out_are_new_arrays_of_the_same_kind(pool: Any) -> None:
    """Numpy in gives numpy out, a list and a scalar give numpy, and the input is left as it was."""
    code = """
x = np.arange(6, dtype=np.float32).reshape(2, 3)
y, z, s = g.all_reduce(x), g.all_reduce([1.0, 2.0]), g.all_reduce(1.5)
result = (y.shape, y.tolist(), x.tolist(), z.tolist(), float(s), g.all_reduce(np.ones(4))[0])
"""
    base = np.arange(6).reshape(2, 3)
    for answer in pool.run(code, pool.group(2)):
        assert answer == ((2, 3), (base * 2.0).tolist(), (base * 1.0).tolist(), [2.0, 4.0], 3.0, 2.0)


def test_a_group_of_one_still_follows_the_rule(pool: Any) -> None:
    """One rank alone gets its own values, with the one NaN."""
    code = """
x = np.array([0xffc00001, 0x80000000], np.uint32).view(np.float32)
g.barrier(), g.broadcast(x)
result = (g.all_reduce(x).view(np.uint32).tolist(), g.all_gather(x).shape)
"""
    assert pool.run(code, pool.group(1)) == [([0x7FC00000, 0x80000000], (1, 2))]
