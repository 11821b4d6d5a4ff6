"""Faults planted on purpose, so that the gate can be shown to find them.

Named as ``KIND:LAYER``, for example ``dropped-layer:7``. Each is planted where its effect is largest.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from tbkit.errors import UsageError
from tbkit.rank.sharded.layers import PartialSum
from tbkit.rank.sharded.shard import Shard, get, put

KINDS = ("dropped-layer", "swapped-head", "missing-reduction", "stale-row")


def parse(text: str, layers: int) -> tuple[str, int]:
    """Kind and layer of a fault's name; UsageError when there is no such fault or layer."""
    kind, _, number = text.partition(":")
    layer = int(number) if number.isdigit() else -1
    if kind not in KINDS or not 0 <= layer < layers:
        rule = f"a fault is one of {', '.join(KINDS)} with a layer 0 to {layers - 1}"
        raise UsageError("--plant", rule, text, "Write for example dropped-layer:7")
    return kind, layer


class Fault:
    """A fault of a loaded shard. ``after_prefill`` is called at the end of every prompt."""

    def __init__(self, name: str, shard: Shard) -> None:
        self.kind, self.layer = parse(name, shard.facts.layers)
        self.shard = shard
        self.local = self.layer - shard.share.layers[0]
        self.mine = 0 <= self.local < len(shard.layers)
        if self.mine:
            getattr(self, "_" + self.kind.replace("-", "_"))()

    def _dropped_layer(self) -> None:
        shard = self.shard
        for i, layer in enumerate(shard.layers):
            layer.tbkit_index = shard.share.layers[0] + i
        del shard.layers[self.local], shard.caches[self.local]
        shard.model.model.layers = list(shard.layers)

    def _swapped_head(self) -> None:
        """The first two query heads of rank 0, or of the stage, change places; the output projection stays."""
        if self.shard.tensor and self.shard.rank:
            return
        if len(self.shard.share.kv_of_query) < 2:
            raise self._out_of_place("two query heads on rank 0")
        dim = self.shard.facts.head_dim
        layer = self.shard.layers[self.local]
        order = mx.array([*range(dim, 2 * dim), *range(dim), *range(2 * dim, self._q_rows(layer))])
        projection = get(layer, self.shard.family.role("q_proj").path)
        for name in ("weight", "scales", "biases"):
            if name in projection:
                projection[name] = projection[name][order]

    def _q_rows(self, layer: Any) -> int:
        return int(get(layer, self.shard.family.role("q_proj").path).weight.shape[0])

    def _missing_reduction(self) -> None:
        """The attention output of the layer stays a partial sum, on every rank alike."""
        role = self.shard.family.role("o_proj")
        layer = self.shard.layers[self.local]
        summed = get(layer, role.path)
        if not isinstance(summed, PartialSum):
            raise self._out_of_place("a plan with reductions, as the tensor kinds have")
        put(layer, role.path, Unsummed(summed.inner))

    def _out_of_place(self, rule: str) -> UsageError:
        return UsageError(
            "--plant", f"{self.kind} takes {rule}", self.shard.plan.kind, "Try --kind tensor-uneven"
        )

    def _stale_row(self) -> None:
        """Nothing at load: the row is made stale after each prompt."""

    def after_prefill(self) -> None:
        """Leave the row of the last prompt position, on every rank alike, as the position before it had left it."""
        if self.kind != "stale-row" or not self.mine:
            return
        cache = self.shard.caches[self.local]
        last = cache.offset - 1
        cache.keys[..., last, :] = cache.keys[..., last - 1, :]
        cache.values[..., last, :] = cache.values[..., last - 1, :]


class Unsummed(nn.Module):
    """A partial sum that nobody completes."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, x: mx.array) -> Any:
        return self.inner(x)
