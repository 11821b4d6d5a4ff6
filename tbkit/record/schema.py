"""The record of a run: every factor, every arm, the account. Frozen structs, JSON in and out.

A run is a folder: ``record.json`` (this schema), ``samples.parquet`` (raw step times per rank),
``environment.json``, ``log.txt``. Times are microseconds (``_us``), sizes bytes, rates tokens/s.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tbkit.show import Shown
from tbkit.stats import Interval as Interval

SCHEMA_VERSION = 1

Reality = Literal["local", "emulated", "simulated", "mock", "rack", "published"]


class Arm(msgspec.Struct, frozen=True):
    """One (nodes, plan, intervention): step time in microseconds from medians of blocks."""

    nodes: int
    plan: str
    intervention: str
    step_us: Interval
    decode_tok_s: Interval
    blocks: int
    steps_a_block: int
    collectives_a_step: int
    bytes_a_step: int
    stable: bool
    spread: float  # max/min - 1 of the last three warm-up block medians


class SpeedUp(msgspec.Struct, frozen=True):
    """T_1/T_p of intervention P; the base is the measured single node."""

    nodes: int
    plan: str
    value: float
    low: float
    high: float


class Term(msgspec.Struct, frozen=True):
    """One term of the ledger, microseconds a step; ``second`` is None for "one route only"."""

    name: str
    us: float
    low: float
    high: float
    share: float  # of T_p - T_1/p
    words: str  # what it is and, where there is one, its cause
    second: Interval | None = None  # the same term from its second source
    second_source: str = ""


class Residual(msgspec.Struct, frozen=True):
    """P minus the ideal time and the terms as their second sources give them."""

    us: float
    low: float
    high: float
    share: float
    resolved: bool
    blocks_needed: int  # to tell the residual from zero; 0 when resolved
    words: str


class Ledger(Shown, msgspec.Struct, frozen=True):
    """The closed account T_p - T_1/p = sum of terms, for one plan on p nodes."""

    nodes: int
    plan: str
    step_us: Interval  # T_p
    single_us: Interval  # T_1
    ideal_us: float  # T_1/p
    terms: tuple[Term, ...]
    residual: Residual
    interval_scope: str  # "within one load" or "between loads"
    reality: Reality = "local"


class Check(msgspec.Struct, frozen=True):
    """One check of the gate."""

    name: str
    ok: bool
    words: str


class Gate(Shown, msgspec.Struct, frozen=True):
    """The verdict on one plan: OK, or WRONG with the place of the fault."""

    nodes: int
    plan: str
    verdict: Literal["OK", "WRONG"]
    checks: tuple[Check, ...]


class Record(Shown, msgspec.Struct, frozen=True):
    """Everything that was found in a run; ``factors`` holds every setting, as text or number."""

    id: str
    workload: str
    state: Literal["running", "done", "wrong", "failed"]
    reality: Reality
    created: str  # ISO 8601, UTC
    model: str
    cluster: dict[str, Any]
    factors: dict[str, Any]
    arms: tuple[Arm, ...] = ()
    speedup: tuple[SpeedUp, ...] = ()
    gates: tuple[Gate, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
