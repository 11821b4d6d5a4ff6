"""Placements of the real model and of others: known cuts, refusals, faces."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import tbkit.plan as room
from tbkit.errors import PlanError, UsageError
from tbkit.model import ModelFacts, facts_from_config, find
from tbkit.plan import Placement, plan
from tbkit.plan.placement import sizes_in_words, weights_bytes

NAME = "smollm2-135m-instruct"


def made(**changes: Any) -> ModelFacts:
    return msgspec.structs.replace(find(NAME).facts, **changes)


def test_tensor_uneven_over_two() -> None:
    """9 query heads are 5 + 4; KV head 1 is on both and is named on both."""
    found = plan(NAME, 2)["tensor-uneven"]
    first, second = found.shares
    assert (first.query_heads, second.query_heads) == ((0, 5), (5, 9))
    assert (first.kv_heads, second.kv_heads) == ((0, 1), (1, 2))
    assert (first.kv_of_query, second.kv_of_query) == ((0, 0, 0, 1, 1), (0, 1, 1, 1))
    assert (first.mlp, second.mlp, first.vocab, second.vocab) == (
        (0, 768),
        (768, 1536),
        (0, 24576),
        (24576, 49152),
    )
    assert first.repeated == second.repeated == ("kv_head 1", "norms")
    words = "query heads 5 + 4, KV heads 2 + 2 (head 1 twice), MLP 768 + 768, vocabulary 24576 + 24576"
    assert found.split == words


def test_tensor_uneven_over_four() -> None:
    """3 + 2 + 2 + 2 query heads, KV heads 1 and 2 twice."""
    found = plan(NAME, 4)["tensor-uneven"]
    assert [s.query_heads for s in found.shares] == [(0, 3), (3, 5), (5, 7), (7, 9)]
    assert [s.kv_heads for s in found.shares] == [(0,), (1,), (1, 2), (2,)]
    assert found.split.startswith("query heads 3 + 2 + 2 + 2, KV heads 1 + 1 + 2 + 1 (heads 1 and 2 twice)")


@pytest.mark.parametrize(("nodes", "sizes"), [(2, [15, 15]), (4, [8, 8, 7, 7]), (30, [1] * 30)])
def test_pipeline(nodes: int, sizes: list[int]) -> None:
    """Layers are near-equal, larger parts first; the tied table is on the first and last rank, named."""
    shares = plan(NAME, nodes)["pipeline"].shares
    assert [b - a for a, b in (s.layers for s in shares)] == sizes
    assert [s.has_embedding for s in shares] == [True] + [False] * (nodes - 1)
    assert [s.has_head for s in shares] == [False] * (nodes - 1) + [True]
    assert shares[0].repeated == shares[-1].repeated == ("embedding",)


def test_an_untied_pipeline_repeats_nothing() -> None:
    """With a head of its own, embedding and head are two tables."""
    assert all(s.repeated == () for s in plan(made(tied=False), 3)["pipeline"].shares)


def test_even_tensor_over_three() -> None:
    """9 and 3 heads divide by 3, so tensor is best and tensor-uneven is refused."""
    plans = plan(NAME, 3)
    assert plans.best.kind == "tensor"
    assert all(s.repeated == ("norms",) and len(s.kv_heads) == 1 for s in plans["tensor"].shares)
    with pytest.raises(PlanError, match="tensor divides evenly"):
        plans["tensor-uneven"]


@pytest.mark.parametrize(
    ("nodes", "kind", "words"),
    [
        (
            2,
            "tensor",
            r"9 query heads and 3 KV heads do not divide by 2; tensor-uneven can\. Remedy: take tensor-un",
        ),
        (4, "tensor", "9 query heads and 3 KV heads do not divide by 4"),
        (
            9,
            "tensor",
            "3 KV heads do not divide by 9; 48 groups of 32 MLP units do not divide by 9; tensor-uneven",
        ),
        (10, "tensor-uneven", "10 nodes are more than 9 query heads"),
        (49, "tensor-uneven", "49 nodes are more than 48 groups of 32 MLP units"),
        (31, "pipeline", "31 nodes are more than 30 layers"),
        (4, "one", "uses 1 of the 4 nodes"),
        (1, "tensor", "one node has nothing to share"),
        (1, "pipeline", "one node has nothing to pass on"),
    ],
)
def test_refusals_name_the_numbers(nodes: int, kind: str, words: str) -> None:
    """A kind that cannot be says why, with the numbers that decide."""
    with pytest.raises(PlanError, match=words):
        plan(NAME, nodes)[kind]


def test_tensor_does_not_point_at_what_cannot_be() -> None:
    """Where tensor-uneven is refused too, the refusal of tensor does not offer it."""
    assert "tensor-uneven" not in " ".join(plan(NAME, 10)[1].reasons)


def test_heads_are_cut_where_groups_end() -> None:
    """Heads of 32 in groups of 64 are cut in pairs; an odd number of them is no whole group."""
    facts = made(query_heads=12, kv_heads=6, head_dim=32, group_size=64)
    assert [s.query_heads for s in plan(facts, 4)["tensor-uneven"].shares] == [
        (0, 4),
        (4, 8),
        (8, 10),
        (10, 12),
    ]
    odd = plan(made(query_heads=9, head_dim=32, group_size=64), 2)
    assert "9 query heads of width 32 are not whole groups of 64" in odd[2].reasons
    assert "MLP width 100 is not whole groups of 32" in plan(made(mlp_width=100), 2)[2].reasons
    pairs = plan(made(query_heads=6, kv_heads=2, head_dim=32, group_size=64), 2)
    assert "3 pieces of 2 query heads (whole groups of 64) do not divide by 2" in pairs[1].reasons[0]


def test_best_follows_the_order_of_kinds() -> None:
    """tensor, then tensor-uneven, then pipeline, then one."""
    assert [plan(NAME, n).best.kind for n in (1, 2, 3, 10)] == ["one", "tensor-uneven", "tensor", "pipeline"]


def test_nothing_fits_says_all_reasons() -> None:
    """More nodes than anything can be cut into: no best plan, and the error says why for each kind."""
    plans = plan(NAME, 1000)
    with pytest.raises(PlanError, match=r"one: .*tensor: .*pipeline: 1000 nodes are more than 30 layers"):
        _ = plans.best
    assert plans.to_json()["best"] is None


def test_a_missing_key_leaves_the_question_open() -> None:
    """Without vocab_size no kind is decided, and the key is named."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    plans = plan(facts_from_config(config | {"intermediate_size": 64}, "m"), 2)
    undecided = [p for p in plans if p.fits is None]
    assert [p.kind for p in undecided] == ["tensor", "tensor-uneven", "pipeline"]
    assert undecided[0].reasons == ("cannot decide: vocab_size missing",)
    with pytest.raises(PlanError, match="vocab_size missing"):
        plans["pipeline"]
    assert plans.to_json()["plans"][3]["fits"] is None


def test_an_unknown_kind_gets_the_nearest() -> None:
    """A typing error is answered with the kind that was meant."""
    with pytest.raises(UsageError, match="Did you mean 'pipeline'"):
        plan(NAME, 2)["pipelin"]


@pytest.mark.parametrize("nodes", [0, -1, True, 2.0, "2", None])
def test_nodes_must_be_a_number(nodes: Any) -> None:
    """What is not a whole number from 1 is a usage error."""
    with pytest.raises(UsageError, match="whole number from 1"):
        plan(NAME, nodes)


def test_a_cluster_stands_for_its_size() -> None:
    """Anything with a size is taken by it."""
    assert plan(NAME, SimpleNamespace(size=2)).nodes == 2


def test_the_plans_are_a_sequence() -> None:
    """Length, order, slices and membership work as for a tuple."""
    plans = plan(NAME, 2)
    assert len(plans) == 4 and [p.kind for p in plans] == ["one", "tensor", "tensor-uneven", "pipeline"]
    assert plans[-1] is plans["pipeline"] and plans[2:] == (plans[2], plans[3]) and plans.best in plans


def test_the_table_shows_every_kind() -> None:
    """Text and rows say kind, fits, and split or reason, within 100 columns."""
    plans = plan(NAME, 2)
    text = str(plans)
    assert text == repr(plans) and "tensor-uneven  yes   query heads 5 + 4" in text
    assert (
        "9 query heads and 3 KV heads do not divide by 2" in text and max(map(len, text.split("\n"))) <= 100
    )
    assert [r["fits"] for r in plans.rows()] == [False, False, True, True]


def test_json_has_the_keys_of_the_verb() -> None:
    """facts, plans with a rank each, best; what is not known yet is null."""
    data = json.loads(json.dumps(plan(NAME, 2).to_json()))
    assert set(data) == {"facts", "plans", "best"} and data["best"] == "tensor-uneven"
    uneven = data["plans"][2]
    assert set(uneven) == {"kind", "nodes", "split", "fits", "reasons", "ranks", "predicted", "engines"}
    assert [set(r) for r in uneven["ranks"]] == [
        {"weights_bytes", "kv_bytes", "total_bytes", "limit_bytes"}
    ] * 2
    assert uneven["ranks"][0]["weights_bytes"] > 0 and uneven["ranks"][0]["kv_bytes"] is None


def test_bytes_of_the_ranks_add_up_with_what_is_repeated() -> None:
    """Two ranks hold the file's bytes, and once more one KV head a layer and all norms."""
    facts = find(NAME).facts
    repeated = 30 * 2 * 64 * 576 * 5 / 8 + 61 * 576 * 4
    held = [weights_bytes(facts, s) or 0 for s in plan(NAME, 2)["tensor-uneven"].shares]
    assert sum(held) == facts.weights_bytes + repeated
    assert weights_bytes(facts, plan(NAME, 1).best.shares[0]) == facts.weights_bytes


def test_unknown_bits_give_no_bytes() -> None:
    """A rank's bytes are None where the config does not say how weights are stored."""
    facts = made(weight_cost_bits=0.0, weights_bytes=None)
    assert plan(facts, 2).rows()[2]["weights_bytes"] is None


def test_placements_travel_as_json() -> None:
    """A placement comes back equal from JSON, as a rank process receives it."""
    for placement in plan(NAME, 4):
        assert msgspec.json.decode(msgspec.json.encode(placement), type=Placement) == placement


def test_long_splits_are_counted() -> None:
    """More than eight parts are told as runs."""
    assert sizes_in_words([2, 2, 1, *[3] * 9]) == "2 (2 times) + 1 + 3 (9 times)"


def test_the_room_is_callable() -> None:
    """tb.plan(...) works although the package of that name was imported."""
    assert repr(room(NAME, 2)) == repr(plan(NAME, 2))  # type: ignore[operator]


def test_importing_the_room_loads_nothing_heavy() -> None:
    """Planning needs neither mlx nor numpy nor a drawing library."""
    heavy = ("mlx", "numpy", "pandas", "plotly", "tokenizers")
    code = f"import tbkit.plan, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
