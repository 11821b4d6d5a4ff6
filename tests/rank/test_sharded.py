"""A model cut over ranks gives what one node gives: every kind, odd splits, both back ends, each rank only its part."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

from tbkit.errors import TbkitError
from tbkit.model.facts import ModelFacts
from tbkit.plan import plan
from tbkit.plan.placement import weights_bytes

Facts = Callable[..., ModelFacts]
PROMPT = [5, 17, 3, 99, 42, 8, 64]
FORCED = [11, 2, 88, 100]
FETCH = """
import os
path = sharded.logits(prompt, tokens)["path"]
result = None
if path:
    with np.load(path) as file:
        result = file["logits"]
    os.unlink(path)
"""
GREEDY = """
result = [sharded._first_token(prompt)]
while len(result) < 8:
    result.append(sharded.shard.step(result[-1])[0])
"""
HELD = """
from mlx.utils import tree_flatten
shard = sharded.shard
seen = {id(a): a.nbytes for _, a in tree_flatten(shard.model.parameters()) if a.size}
result = {"bytes": sum(seen.values()), "repeated": type(shard.caches[0]).__name__ == "RepeatedKVCache"}
"""


def cases() -> list[Any]:
    """Shapes whose splits are even, uneven, or repeat KV heads, each with the kinds and counts that fit."""
    shapes = {
        "3 heads, 1 KV": {},
        "3 heads, 3 KV": {"kv_heads": 3},
        "6 heads, 2 KV": {"query_heads": 6, "kv_heads": 2, "layers": 3},
        "4 heads, 4 KV": {"query_heads": 4, "kv_heads": 4, "mlp_width": 96, "layers": 4},
    }
    return [pytest.param(shape, id=name) for name, shape in shapes.items()]


def fitting(facts: ModelFacts) -> list[tuple[int, str]]:
    """(nodes, kind) of 2 to 4 nodes that fit."""
    return [(n, p.kind) for n in (2, 3, 4) for p in plan(facts, n) if p.fits]


def logits_of(ranks: Any, nodes: int) -> np.ndarray:
    found = [x for x in ranks.python(nodes, FETCH, prompt=PROMPT, tokens=FORCED) if x is not None]
    assert len(found) == 1, "one rank has the logits"
    return found[0]


@pytest.mark.parametrize("shape", cases())
def test_every_cut_gives_what_one_node_gives(ranks: Any, facts_of: Facts, shape: dict[str, int]) -> None:
    """Logits of prompt and forced tokens within rounding, the same greedy tokens on every rank, owners as planned."""
    facts = facts_of(**shape)
    ranks.load(facts, 1, "one")
    whole, greedy = logits_of(ranks, 1), ranks.python(1, GREEDY, prompt=PROMPT)[0]
    assert whole.shape == (len(PROMPT) + len(FORCED), facts.vocab_rows) and np.abs(whole).max() > 1
    for nodes, kind in fitting(facts):
        reports = ranks.load(facts, nodes, kind)
        what = f"{kind} on {nodes}"
        assert np.abs(logits_of(ranks, nodes) - whole).max() < 2e-4, what
        assert ranks.python(nodes, GREEDY, prompt=PROMPT) == [greedy] * nodes, what
        for share, report in zip(plan(facts, nodes)[kind].shares, reports, strict=True):
            assert report["owned"] == {
                "layers": list(range(*share.layers)),
                "query_heads": share.query_heads[1] - share.query_heads[0],
                "kv_heads": len(share.kv_heads),
                "mlp": share.mlp[1] - share.mlp[0],
                "vocabulary_rows": share.vocab[1] - share.vocab[0],
            }, what


def test_each_rank_holds_its_slices_and_no_more(ranks: Any, facts_of: Facts) -> None:
    """Bytes of all arrays of a rank are those of its share, for every kind; what is left of the whole is gone."""
    facts = facts_of(
        kv_heads=3,
        layers=3,
        weight_bits=32,
        embedding_bits=32,
        norm_bits=32,
        weight_cost_bits=32.0,
        embedding_cost_bits=32.0,
        weights_bytes=0,
    )
    facts = type(facts)(
        **{f: getattr(facts, f) for f in facts.__struct_fields__}
        | {"weights_bytes": round(facts.computed_bytes() or 0)}
    )
    for nodes, kind in [(1, "one"), *fitting(facts)]:
        ranks.load(facts, nodes, kind)
        for share, held in zip(plan(facts, nodes)[kind].shares, ranks.python(nodes, HELD), strict=True):
            assert held["bytes"] == weights_bytes(facts, share), f"{kind} on {nodes}, rank {share.rank}"


def test_kv_heads_are_repeated_only_where_the_cut_needs_it(ranks: Any, facts_of: Facts) -> None:
    """9 query heads over 3 KV heads: 5 + 4 do not pair in equal groups on either rank, 3 + 2 + 2 + 2 do on all."""
    facts = facts_of(query_heads=9, kv_heads=3)
    ranks.load(facts, 2, "tensor-uneven")
    assert [held["repeated"] for held in ranks.python(2, HELD)] == [True, True]
    ranks.load(facts, 4, "tensor-uneven")
    assert [held["repeated"] for held in ranks.python(4, HELD)] == [False] * 4


def test_bfloat16_is_cut_as_well(ranks: Any, facts_of: Facts) -> None:
    """Weights, activations and collectives in bfloat16: logits within its rounding."""
    facts = facts_of(kv_heads=3)
    ranks.load(facts, 1, "one", "random:bfloat16")
    whole = logits_of(ranks, 1)
    for nodes, kind in ((2, "tensor-uneven"), (2, "pipeline"), (4, "tensor-uneven"))[
        : 2 + (len(ranks.supervisors) > 3)
    ]:
        if (nodes, kind) in fitting(facts):
            ranks.load(facts, nodes, kind, "random:bfloat16")
            assert np.abs(logits_of(ranks, nodes) - whole).max() < 0.03 * np.abs(whole).max()


@pytest.mark.slow
def test_the_ring_gives_the_same(start: Any, ranks: Any, facts_of: Facts) -> None:
    """MLX's own ring, two processes on this machine: logits within rounding of one node, the same greedy tokens."""
    facts = facts_of(query_heads=4, kv_heads=2, mlp_width=64)
    ranks.load(facts, 1, "one")
    whole, greedy = logits_of(ranks, 1), ranks.python(1, GREEDY, prompt=PROMPT)[0]
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hosts = [[f"127.0.0.1:{one.getsockname()[1]}"] for one in listening]
    for one in listening:
        one.close()
    pair = type(ranks).__new__(type(ranks))
    pair.supervisors, pair.threads = [start("r0"), start("r1")], ThreadPoolExecutor(2)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file, pair.threads:
        file.write(json.dumps(hosts))
        file.flush()
        for rank, one in enumerate(pair.supervisors):
            one.stop()
            one.start({"MLX_HOSTFILE": file.name, "MLX_RANK": str(rank)})
        for kind in ("tensor", "pipeline"):
            pair.load(facts, 2, kind, backend="ring")
            assert np.abs(logits_of(pair, 2) - whole).max() < 2e-4, kind
            assert pair.python(2, GREEDY, prompt=PROMPT) == [greedy] * 2, kind


def test_a_shard_without_its_group_is_refused(ranks: Any, facts_of: Facts) -> None:
    """Two nodes' plan on a rank that joined no group is an error with a remedy, not a hang; so is a call before."""
    ranks.python(1, "body.group = None; body.model = None")
    args = {
        "facts": msgspec.to_builtins(facts_of()),
        "plan": msgspec.to_builtins(plan(facts_of(), 2)["pipeline"]),
    }
    with pytest.raises(TbkitError, match="loaded"):
        ranks.ask("model", [{"call": "sentinel"}])
    with pytest.raises(TbkitError, match="group"):
        ranks.ask("load", [args | {"rank": 0, "weights": "random:float32"}])
