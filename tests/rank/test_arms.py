"""Interventions: each changes only what it says, counts what it did, and leaves shard and caches as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tbkit.errors import InputError
from tbkit.model.facts import ModelFacts
from tbkit.plan import plan

Facts = Callable[..., ModelFacts]
PROMPT = [5, 17, 3, 99, 42, 8, 64]
TOKENS = [11, 2, 88, 100]
LAYERS, HIDDEN = 3, 48
COUNTS = "result = {a: (r := sharded.arm(a))['collectives'] and (r['collectives'], r['bytes']) for a in arms}"
OUTPUTS = """
outs = []
shard = sharded.shard
step = shard.step
def kept(token):
    got = step(token)
    outs.append(np.array(got[1].astype(mx.float32)))
    return got
shard.step = kept
try:
    for arm in arms:
        sharded.arm(arm)
finally:
    del shard.step
result = np.stack(outs).reshape(len(arms), -1)
"""
CACHES = """
result = [np.array(x[..., :7, :].astype(mx.float32)) for c in sharded.shard.caches for x in (c.keys, c.values)]
"""
FORWARD = """
sharded.shard.forget(7)
result = np.array(sharded.shard.step(3)[1].astype(mx.float32))
sharded.shard.forget(7)
"""


@pytest.fixture(params=["tensor-uneven", "pipeline"])
def loaded(request: pytest.FixtureRequest, ranks: Any, facts_of: Facts) -> Any:
    """Two ranks with a plan, prepared for arms."""
    facts = facts_of(layers=LAYERS)
    ranks.load(facts, 2, request.param)
    ranks.ask("model", [{"call": "prepare", "prompt": PROMPT, "tokens": TOKENS}] * 2)
    return request.param, facts, ranks


def test_counts_are_the_programs(loaded: Any) -> None:
    """F, L, C and N meet the program's collectives; F's bytes are the messages', L's 4 a message, C's and N's none."""
    kind, facts, ranks = loaded
    found = ranks.python(2, COUNTS, arms=["P", "F", "L", "C", "N"])
    steps = len(TOKENS)
    if kind == "pipeline":
        wanted = [2 * steps, 2 * steps]
        carried = [steps * (HIDDEN * 4 + 4)] * 2
    else:
        widest = max(s.vocab[1] - s.vocab[0] for s in plan(facts, 2)[kind].shares)
        wanted = [steps * (2 * LAYERS + 2)] * 2
        carried = [steps * 4 * ((2 * LAYERS + 1) * HIDDEN + widest)] * 2
    for rank, counts in enumerate(found):
        assert counts["P"] is None
        assert counts["F"] == [wanted[rank], carried[rank]]
        assert counts["L"] == [wanted[rank], 4 * wanted[rank]]
        assert counts["C"] == counts["N"] == [wanted[rank], 0]


def test_arms_without_links_need_no_peer(loaded: Any) -> None:
    """A runs to its end on one rank while the other does nothing, and meets the same points."""
    _, _, ranks = loaded
    for rank in (0, 1):
        asked = {"code": "r = body.model.arm('A'); result = (r['collectives'], r['bytes'], r['finite'])"}
        collectives, carried, finite = ranks.supervisors[rank].call("python", asked, 20.0)
        assert carried == 0 and finite
        full = ranks.python(2, "result = sharded.arm('F')['collectives']")
        assert collectives == full[rank]


def test_the_fabric_counts_nothing_in_arms_that_do_not_communicate(loaded: Any) -> None:
    """C and N leave the group's own count of operations as it was but for the barrier before the arm."""
    code = """
before = {k: v.calls for k, v in body.group.counts.items() if k != "barrier"}
sharded.arm(arm)
result = before == {k: v.calls for k, v in body.group.counts.items() if k != "barrier"}
"""
    _, _, ranks = loaded
    for arm, silent in (("C", True), ("N", True), ("L", False), ("F", False)):
        assert ranks.python(2, code, arm=arm) == [silent] * 2


def test_replayed_states_give_the_plain_steps_logits(loaded: Any) -> None:
    """F with re-injection computes exactly what P computes, bit for bit, at every step."""
    _, _, ranks = loaded
    for outs in ranks.python(2, OUTPUTS, arms=["P", "F", "P"]):
        assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])
        assert np.isfinite(outs).all()


def test_every_arm_times_each_step_and_its_segments(loaded: Any) -> None:
    """One time a step; one segment more than cuts where the graph is cut, together no longer than the step."""
    _, _, ranks = loaded
    code = "result = {a: sharded.arm(a) for a in ('P', 'F', 'L', 'C', 'N')}"
    for found in ranks.python(2, code):
        assert found["P"]["segments_us"] == [] and len(found["P"]["step_us"]) == len(TOKENS)
        for arm in ("F", "L", "C"):
            cuts = found[arm]["collectives"] // len(TOKENS)
            assert [len(parts) for parts in found[arm]["segments_us"]] == [cuts + 1] * len(TOKENS)
            for step, parts in zip(found[arm]["step_us"], found[arm]["segments_us"], strict=True):
                assert 0 < sum(parts) <= step and min(parts) >= 0
        assert [len(parts) for parts in found["N"]["segments_us"]] == [1] * len(TOKENS)


def test_arms_and_pieces_leave_the_shard_as_it_was(loaded: Any) -> None:
    """After every arm and every second source: the same logits, the same cache rows, the plain links and layers."""
    kind, _, ranks = loaded
    logits, rows = ranks.python(2, FORWARD), ranks.python(2, CACHES)
    for arm in ("F", "L", "C", "N"):
        ranks.python(2, "sharded.arm(arm)", arm=arm)
    for rank in (0, 1):
        ranks.supervisors[rank].call(
            "python", {"code": "body.model.arm('A'); body.model.time_pieces(False)"}, 20.0
        )
    ranks.python(2, "sharded.time_pieces(True); sharded.time_links()")
    for before, after in zip(rows, ranks.python(2, CACHES), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    for before, after in zip(logits, ranks.python(2, FORWARD), strict=True):
        assert np.array_equal(before, after)
    plain = "result = (type(sharded.shard.wire.links).__name__, type(sharded.shard.model.model.layers[0]).__name__)"
    assert ranks.python(2, plain) == [["FabricLinks", "TransformerBlock"]] * 2
    assert kind in ("tensor-uneven", "pipeline")


def test_second_sources_name_every_piece(loaded: Any) -> None:
    """Every role, the cores, the ends and the host step are timed above zero; half-layers give two segments each."""
    kind, _, ranks = loaded
    roles = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    for rank, found in enumerate(ranks.python(2, "result = sharded.time_pieces(True)")):
        pieces = found["pieces"]
        assert roles | {"attention", "activation", "norms", "sampling", "build"} <= set(pieces)
        assert {k for k, v in pieces.items() if v <= 0} <= {"sampling"} and pieces["build"] > 0
        held = ranks.python(2, "result = len(sharded.shard.layers)")[rank]
        assert len(found["segments"]) == 2 * held and min(found["segments"]) > 0
        first, last = kind != "pipeline" or rank == 0, kind != "pipeline" or rank == 1
        assert ("embedding" in pieces, "head" in pieces) == (first, last)
    for links in ranks.python(2, "result = sharded.time_links()"):
        assert set(links) == {"crossing", "one", "one_gathered", "hidden", "logits"}
        assert min(v for k, v in links.items() if k != "crossing") > 0


def test_an_arm_before_its_prompt_is_refused(ranks: Any, facts_of: Facts) -> None:
    """An arm without prepare is an error with the rule, not a crash."""
    ranks.load(facts_of(), 1, "one")
    with pytest.raises(InputError, match="prepare"):
        ranks.ask("model", [{"call": "arm", "name": "P"}])
