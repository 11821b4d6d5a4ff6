"""A real model on a cluster: it answers as one node does, whatever the cut, and outlives what happens to it."""

from __future__ import annotations

from typing import Any

import pytest

import tbkit as tb
from tbkit.errors import PlanError, UsageError

pytestmark = pytest.mark.cluster
QUESTION = "The capital of France is"


def test_every_cut_says_paris_in_the_same_words(cluster4: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """tensor-uneven and pipeline on 2 and 4 nodes give the text of one node; it is streamed as it comes."""
    from tbkit.cluster.shard import ShardedModel, weights_of

    weights = weights_of("smollm2-135m-instruct")
    texts = {}
    for nodes, kind in [
        (1, "one"),
        (2, "tensor-uneven"),
        (2, "pipeline"),
        (4, "tensor-uneven"),
        (4, "pipeline"),
    ]:
        model = ShardedModel(cluster4, weights, tb.plan("smollm2-135m-instruct", nodes)[kind])
        made = model.generate(QUESTION, 4)
        texts[nodes, kind] = made.text
        assert capsys.readouterr().out.strip() == made.text.strip(), (nodes, kind)
        assert 0 < made.tokens <= 4 and str(made).startswith(QUESTION)
    assert "Paris" in texts[1, "one"] and set(texts.values()) == {texts[1, "one"]}


def test_two_models_on_one_cluster_take_turns(cluster4: Any) -> None:
    """The older one is loaded again when it is called after the younger: each answers as itself."""
    first = tb.shard(cluster4, tb.plan("smollm2-135m-instruct", 2)["pipeline"])
    second = tb.shard(cluster4, tb.plan("smollm2-135m-instruct", 2)["tensor-uneven"])
    said = [m.generate("The capital of France is", 3, stream=False).text for m in (second, first, second)]

    assert len(set(said)) == 1 and first.plan.kind == "pipeline"
    assert [row["owned"]["query_heads"] for row in second.reports] == [5, 4]


def test_what_cannot_be_is_refused(cluster4: Any) -> None:
    """A plan for more nodes, a kind that does not divide, an unknown model, kind or back end, an empty prompt."""
    with pytest.raises(PlanError, match="needs 5 nodes"):
        tb.shard(cluster4, tb.plan("smollm2-135m-instruct", 5)["pipeline"])
    with pytest.raises(PlanError, match="do not divide"):
        tb.shard(cluster4, "tensor")
    for wrong in ({"plan": "diagonal"}, {"model": "gpt-9"}, {"plan": "pipeline", "backend": "pigeon"}):
        with pytest.raises(UsageError):
            tb.shard(cluster4, **wrong)
