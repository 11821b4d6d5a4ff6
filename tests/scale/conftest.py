"""Small random models for whole runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tbkit.cluster.shard import Weights
from tbkit.model.facts import ModelFacts


@pytest.fixture(scope="session")
def tiny(facts_of: Callable[..., ModelFacts]) -> Callable[..., Weights]:
    """Weights of a small seeded model in float32, or in another type; its heads divide by 3, its layers by 2."""

    def weights(kind: str = "float32", **more: Any) -> Weights:
        return Weights(facts_of(**({"kv_heads": 3} | more)), f"random:{kind}")

    return weights
