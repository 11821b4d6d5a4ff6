"""Small random models for whole runs, and one node's reference kept between the runs that need the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tbkit.cluster.shard import Weights
from tbkit.model.facts import ModelFacts
from tbkit.scale import gate


def small(**more: Any) -> ModelFacts:
    """2 layers, 3 heads of width 16, 101 words: nothing divides by 2 but the layers."""
    values: dict[str, Any] = {
        "name": "tiny",
        "family": "llama",
        "layers": 2,
        "hidden": 48,
        "query_heads": 3,
        "kv_heads": 3,
        "head_dim": 16,
        "mlp_width": 88,
        "vocab_rows": 101,
        "tied": True,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_traditional": True,
        "max_context": 512,
    }
    return ModelFacts(**(values | more))


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Weights]:
    """Weights of a small seeded model in float32, or in another type."""
    return lambda kind="float32", **more: Weights(small(**more), f"random:{kind}")


@pytest.fixture(scope="session")
def references() -> dict[str, gate.Reference]:
    return {}


@pytest.fixture
def one_reference(references: dict[str, gate.Reference], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of one node is computed once a model, not once a run."""
    compute = gate.reference

    def kept(single: Any, work: Any, orders: int) -> gate.Reference:
        key = f"{single.weights.facts.name} {single.weights.source}"
        if key not in references:
            references[key] = compute(single, work, orders)
        return references[key]

    monkeypatch.setattr(gate, "reference", kept)
