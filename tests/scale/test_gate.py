"""The gate's arithmetic: what passes, what does not, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tbkit.cluster.shard import Weights
from tbkit.plan import Placement, plan
from tbkit.scale.gate import LEAST_CLEAR, LEAST_POSITIONS, Reference, coverage, differences, judge

POSITIONS, WORDS = 36, 50


def reference(spread: float = 0.01, clear: int = POSITIONS) -> Reference:
    """Logits whose first choice leads by 5 on the first ``clear`` positions and by nothing on the rest."""
    logits = np.random.default_rng(1).uniform(-1, 0, (POSITIONS, WORDS)).astype(np.float32)
    for at in range(POSITIONS):
        logits[at, at % WORDS] = 5.0 if at < clear else 0.0
        logits[at, (at + 1) % WORDS] = 0.0
    return Reference(logits, spread)


def verdicts(ref: Reference, got: Any) -> dict[str, bool]:
    return {check.name: check.ok for check in judge(ref, got)}


def test_the_same_logits_pass() -> None:
    """Both checks hold, with the figures in their words."""
    ref = reference()
    logits, choice = judge(ref, ref.logits.copy())

    assert logits.ok and choice.ok and ref.bound == 0.04
    assert "0.00e+00" in logits.words and "bound 4.00e-02" in logits.words and "36 of 36" in choice.words


@pytest.mark.parametrize(("off", "ok"), [(0.039, True), (0.041, False), (-0.041, False)])
def test_the_bound_is_four_times_the_spread(off: float, ok: bool) -> None:
    """One logit of one position decides; the words name the position."""
    ref = reference()
    got = ref.logits.copy()
    got[17, 3] += off

    check = judge(ref, got)[0]
    assert check.ok is ok and "position 17 of 36" in check.words


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_wrong(bad: float) -> None:
    """A single NaN or infinity fails the gate and is found as the worst position."""
    ref = reference()
    got = ref.logits.copy()
    got[5, 7] = bad

    assert not verdicts(ref, got)["logits"]
    assert int(differences(ref, got).argmax()) == 5 and np.isinf(differences(ref, got)[5])


def test_a_reference_that_is_not_finite_passes_nothing() -> None:
    """A spread that is NaN is no bound."""
    ref = reference(float("nan"))
    assert not all(verdicts(ref, ref.logits.copy()).values())


@pytest.mark.parametrize("shape", [(POSITIONS - 1, WORDS), (POSITIONS, WORDS + 1), (POSITIONS * WORDS,)])
def test_another_shape_is_wrong(shape: tuple[int, ...]) -> None:
    """Positions or vocabulary are missing: said, not raised."""
    (check,) = judge(reference(), np.zeros(shape, dtype=np.float32))

    assert not check.ok and str(shape) in check.words


def test_too_few_positions_are_no_evidence() -> None:
    """Fewer than 32 positions fail, however equal."""
    ref = reference()
    short = Reference(ref.logits[: LEAST_POSITIONS - 1], 0.01)

    assert not verdicts(short, short.logits.copy())["logits"]
    enough = Reference(ref.logits[:LEAST_POSITIONS], 0.01)
    assert verdicts(enough, enough.logits.copy())["logits"]


@pytest.mark.parametrize(("clear", "ok"), [(LEAST_CLEAR, True), (LEAST_CLEAR - 1, False)])
def test_at_least_sixteen_positions_must_be_clear(clear: int, ok: bool) -> None:
    """Without enough clear margins an equal first choice says nothing, and that is said."""
    ref = reference(clear=clear)
    check = judge(ref, ref.logits.copy())[1]

    assert check.ok is ok and ("at least 16" in check.words) is not ok


def test_another_first_choice_counts_only_where_the_margin_is_clear() -> None:
    """Swapping two equal words at an unclear position passes; at a clear one it fails."""
    ref = reference(clear=20)
    got = ref.logits.copy()
    got[30, 31] += 0.01
    assert got[30].argmax() != ref.logits[30].argmax() and verdicts(ref, got) == {
        "logits": True,
        "argmax": True,
    }
    got[3, [3, 4]] = got[3, [4, 3]]
    assert not verdicts(ref, got)["argmax"]


def reports(placed: Placement) -> list[dict[str, Any]]:
    """What ranks report when they hold what the plan gives them."""
    return [
        {
            "owned": {
                "layers": list(range(*share.layers)),
                "query_heads": share.query_heads[1] - share.query_heads[0],
                "kv_heads": len(share.kv_heads),
                "mlp": share.mlp[1] - share.mlp[0],
                "vocabulary_rows": share.vocab[1] - share.vocab[0],
            }
        }
        for share in placed.shares
    ]


@pytest.mark.parametrize(
    ("nodes", "kind"), [(1, "one"), (2, "tensor-uneven"), (3, "tensor"), (2, "pipeline")]
)
def test_full_coverage_passes(tiny: Callable[..., Weights], nodes: int, kind: str) -> None:
    """Every part where the plan puts it."""
    facts = tiny(mlp_width=96).facts
    placed = plan(facts, nodes)[kind]

    assert coverage(facts, placed, reports(placed)).ok


@pytest.mark.parametrize(
    ("rank", "change", "words"),
    [
        (1, {"layers": []}, "layer 1 is missing on rank 1"),
        (0, {"layers": [0, 1]}, "layer 1 is doubled on rank 0"),
        (0, {"query_heads": 2}, "rank 0 holds 2 of 3 query heads"),
        (1, {"kv_heads": 1}, "rank 1 holds 1 of 3 kv heads"),
        (1, {"mlp": 80}, "rank 1 holds 80 of 88 mlp"),
    ],
)
def test_what_is_missing_or_doubled_is_named(
    tiny: Callable[..., Weights], rank: int, change: dict[str, Any], words: str
) -> None:
    """The layer or the part, and the rank."""
    facts = tiny().facts
    placed = plan(facts, 2)["pipeline"]
    told = reports(placed)
    told[rank]["owned"] |= change

    check = coverage(facts, placed, told)
    assert not check.ok and words in check.words
