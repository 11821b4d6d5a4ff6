"""A synthetic record: invented numbers that close by construction. Nothing here was measured."""

from __future__ import annotations

import msgspec
import pytest

from tbkit.record.schema import Arm, Check, Gate, Ledger, Record, Residual, SpeedUp, Term
from tbkit.stats import Interval, reciprocal


def interval(value: float, half: float, n: int = 5) -> Interval:
    return Interval(value, value - half, value + half, n)


def arm(nodes: int, plan: str, us: float, half: float, name: str = "P", stable: bool = True) -> Arm:
    step = interval(us, half)
    rate = reciprocal(step, 1e6)
    crossings = 0 if nodes == 1 else 61
    return Arm(
        nodes, plan, name, step, rate, 5, 6, crossings, crossings * 2304, stable, 0.012 if stable else 0.061
    )


def speedup(nodes: int, plan: str, value: float, half: float) -> SpeedUp:
    return SpeedUp(nodes, plan, value, value - half, value + half)


GAP_US = 82_300.0 - 54_250.0
ALONE, TOGETHER = "pieces run alone", "pieces on all ranks at once"
REPEATED = "the vocabulary's norm, the rope tables and the host step on every rank"
SHARED = "2 ranks share one memory controller"
TERMS = (
    ("replicated", 9_800.0, 400.0, REPEATED, interval(9_300.0, 700.0), ALONE),
    ("shape", 3_100.0, 900.0, "narrower matrices run at a lower rate", interval(2_600.0, 800.0), ALONE),
    (
        "contention",
        11_900.0,
        1_200.0,
        "2 ranks share one memory controller",
        interval(10_800.0, 1_500.0),
        TOGETHER,
    ),
    ("imbalance", 2_400.0, 600.0, "rank 0 owns 5 of 9 query heads", interval(2_900.0, 500.0), ALONE),
    ("fence", -1_350.0, 500.0, "evaluating in pieces frees buffers earlier", None, ""),
    (
        "wait",
        1_700.0,
        350.0,
        "rank 1 arrives first at 58 of 61 collectives",
        interval(1_200.0, 900.0),
        "replay",
    ),
    ("latency", 420.0, 90.0, "61 collectives of 2304 bytes", interval(380.0, 60.0), "link card"),
    ("transfer", 80.0, 130.0, "the bytes of 61 collectives", interval(25.0, 5.0), "link card"),
)


def make_ledger() -> Ledger:
    terms = tuple(
        Term(name, us, us - half, us + half, us / GAP_US, text, second, source)
        for name, us, half, text, second, source in TERMS
    )
    left = Residual(1_500.0, -2_100.0, 5_100.0, 1_500.0 / GAP_US, False, 31, "fence has one route only")
    step, single = interval(82_300.0, 900.0), interval(108_500.0, 1_100.0)
    return Ledger(2, "tensor-uneven", step, single, 54_250.0, terms, left, "within one load")


def make_gate(nodes: int, plan: str) -> Gate:
    checks = (
        Check("ownership", True, "30 layers, 9 heads, 49152 vocabulary rows, each owned exactly once"),
        Check("logits", True, "32 positions: max |Δlogit| 3.1e-05, bound 8.8e-05"),
        Check("argmax", True, "29 positions above the margin, all equal"),
    )
    return Gate(nodes, plan, "OK", checks)


@pytest.fixture
def ledger() -> Ledger:
    return make_ledger()


@pytest.fixture
def record() -> Record:
    return Record(
        id="20260911-101500-decode-f1c5",
        workload="decode",
        state="done",
        reality="local",
        created="2026-09-11T10:15:00Z",
        model="smollm2-135m-instruct",
        cluster={"kind": "local", "nodes": ["n0", "n1", "n2", "n3"], "cores": 2},
        factors={"context_tokens": 128, "batch": 1, "blocks": 5, "tokens_an_arm": 6, "threads_per_rank": 1,
                 "transport": "shm", "waiting": "spin, yield, futex", "seed": 7,
                 "order of blocks": "randomised"},
        arms=(
            arm(1, "one", 108_500.0, 1_100.0),
            arm(2, "tensor-uneven", 82_300.0, 900.0),
            arm(2, "tensor-uneven", 83_100.0, 900.0, "F"),
            arm(2, "pipeline", 112_400.0, 1_300.0),
            arm(4, "tensor-uneven", 131_000.0, 6_400.0, stable=False),
            arm(4, "pipeline", 119_800.0, 2_200.0),
        ),
        speedup=(
            speedup(1, "one", 1.0, 0.0),
            speedup(2, "tensor-uneven", 1.318, 0.021),
            speedup(2, "pipeline", 0.965, 0.015),
            speedup(4, "tensor-uneven", 0.828, 0.043),
            speedup(4, "pipeline", 0.906, 0.019),
        ),
        gates=tuple(make_gate(n, plan) for n in (2, 4) for plan in ("tensor-uneven", "pipeline")),
        ledgers=(make_ledger(),),
        notes=("synthetic numbers, for tests alone",),
    )  # fmt: skip


@pytest.fixture
def wrong_record(record: Record) -> Record:
    fault = Check(
        "logits", False, "position 31 differs first at layer 17, attention output: head 4 is read from rank 1"
    )
    bad = Gate(2, "tensor-uneven", "WRONG", (*make_gate(2, "x").checks[:1], fault))
    return msgspec.structs.replace(record, state="wrong", gates=(bad, *record.gates[1:]))
