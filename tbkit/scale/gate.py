"""The gate: no rate is given for a plan whose answers are not those of one node.

Three checks (design.md 7): every part is owned once by what was really loaded; over at least 32
teacher-forced positions max |Δlogit| is within 4 times the spread of one node's own logits under
permuted reduction orders; the first choice is the same wherever the margin of the top two exceeds
twice that bound, on at least 16 such positions.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tbkit.cluster.shard import ShardedModel
from tbkit.model.facts import ModelFacts
from tbkit.plan import Placement
from tbkit.record.schema import Check
from tbkit.scale.decode import Decode

SPREAD_FACTOR = 4.0
LEAST_POSITIONS = 32
LEAST_CLEAR = 16

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Reference(msgspec.Struct, frozen=True):
    """One node's logits (positions, vocabulary) and the bound that its own reduction orders give."""

    logits: Any
    spread: float

    @property
    def bound(self) -> float:
        """The largest |Δlogit| that is rounding."""
        return SPREAD_FACTOR * self.spread


def logits_of(model: ShardedModel, work: Decode, call: str = "logits", **extra: Any) -> Logits:
    """Logits of all positions, from the first rank that has them."""
    answers = model.call(call, prompt=list(work.prompt), tokens=list(work.forced), **extra)
    rank = next(i for i, answer in enumerate(answers) if answer["path"])
    logits: Logits = model.arrays(rank, answers[rank]["path"])["logits"]
    return logits


def reference(single: ShardedModel, work: Decode, orders: int) -> Reference:
    """What one node says, and how far its own words move when its sums are taken in other orders."""
    logits = logits_of(single, work)
    moved = [
        np.abs(logits_of(single, work, "spread", seed=seed) - logits).max() for seed in range(1, orders + 1)
    ]
    return Reference(logits, float(max(moved)))


def coverage(facts: ModelFacts, plan: Placement, reports: list[dict[str, Any]]) -> Check:
    """What the ranks really hold against what the plan gives them: missing and doubled owners by name."""
    faults = []
    owners: dict[int, list[int]] = {layer: [] for layer in range(facts.layers)}
    for rank, report in enumerate(reports):
        for layer in report["owned"]["layers"]:
            owners[layer].append(rank)
    for layer, ranks in owners.items():
        should = [s.rank for s in plan.shares if s.layers[0] <= layer < s.layers[1]]
        for rank in sorted(set(should) - set(ranks)):
            faults.append(f"layer {layer} is missing on rank {rank}")
        for rank in sorted(set(ranks) - set(should)):
            faults.append(f"layer {layer} is doubled on rank {rank}")
    for share, report in zip(plan.shares, reports, strict=True):
        held = report["owned"]
        wanted = {
            "query_heads": share.query_heads[1] - share.query_heads[0],
            "kv_heads": len(share.kv_heads),
            "mlp": share.mlp[1] - share.mlp[0],
            "vocabulary_rows": share.vocab[1] - share.vocab[0],
        }
        faults += [
            f"rank {share.rank} holds {held[k]} of {n} {k.replace('_', ' ')}"
            for k, n in wanted.items()
            if held[k] != n
        ]
    words = (
        "; ".join(faults)
        if faults
        else f"{facts.layers} layers, every head, MLP group and vocabulary row owned once"
    )
    return Check("coverage", not faults, words)


def differences(ref: Reference, got: Logits) -> Logits:
    """max |Δlogit| of each position."""
    found: Logits = np.abs(got - ref.logits).max(axis=-1)
    return np.where(np.isfinite(found), found, np.inf)


def judge(ref: Reference, got: Logits) -> list[Check]:
    """The numeric checks of the gate, in words with their figures."""
    if got.shape != ref.logits.shape:
        return [Check("logits", False, f"shape {got.shape}, the reference has {ref.logits.shape}")]
    worst = differences(ref, got)
    position = int(worst.argmax())
    within = bool(worst.max() <= ref.bound) and len(worst) >= LEAST_POSITIONS
    words = f"max |Δlogit| {worst.max():.2e} at position {position} of {len(worst)}, bound {ref.bound:.2e} (4 × spread)"
    return [Check("logits", within, words), _first_choice(ref, got)]


def _first_choice(ref: Reference, got: Logits) -> Check:
    top = np.sort(ref.logits, axis=-1)[:, -2:]
    clear = (top[:, 1] - top[:, 0]) > 2 * ref.bound
    differ = np.flatnonzero(clear & (got.argmax(-1) != ref.logits.argmax(-1)))
    enough = int(clear.sum()) >= LEAST_CLEAR
    words = f"first choice equal on {int(clear.sum()) - len(differ)} of {int(clear.sum())} clear positions"
    if not enough:
        words += f"; at least {LEAST_CLEAR} must be clear"
    return Check("argmax", enough and not len(differ), words)
