"""Looking inside a shard: taps on every role, and the same model with its sums in another order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from tbkit.rank.sharded.layers import dense, quantised
from tbkit.rank.sharded.shard import Shard, get, put

REORDER_PARTS = 4  # partial sums of a reordered layer, as many as the most ranks of this work


class Tap(nn.Module):
    """A layer that also leaves its output under a name."""

    def __init__(self, inner: Any, name: str, seen: dict[str, mx.array]) -> None:
        super().__init__()
        self.inner = inner
        self._name, self._seen = name, seen

    def __call__(self, x: mx.array) -> Any:
        out = self.inner(x)
        self._seen[self._name] = mx.array(out)
        return out


@contextmanager
def tapped(shard: Shard) -> Iterator[dict[str, mx.array]]:
    """Record the output of every role of every layer, as ``layer.role``, while the context lasts."""
    seen: dict[str, mx.array] = {}
    kept: list[tuple[Any, str, Any]] = []
    for index, layer in zip(shard.numbers, shard.layers, strict=True):
        for role in shard.family.roles:
            inner = get(layer, role.path)
            kept.append((layer, role.path, inner))
            put(layer, role.path, Tap(inner, f"{index}.{role.name}", seen))
    try:
        yield seen
    finally:
        for layer, path, inner in kept:
            put(layer, path, inner)


def cache_rows(shard: Shard) -> dict[str, mx.array]:
    """Keys and values in the caches, ``layer.cache_k`` and ``layer.cache_v``: (held KV heads, positions, head_dim)."""
    rows = {}
    for index, cache in zip(shard.numbers, shard.caches, strict=True):
        rows[f"{index}.cache_k"] = cache.keys[0, :, : cache.offset, :]
        rows[f"{index}.cache_v"] = cache.values[0, :, : cache.offset, :]
    return rows


class Reordered(nn.Module):
    """A linear layer whose contraction is a sum of parts, whole groups in a permuted order.

    Mathematically the same layer; its rounding is that of another reduction order, partial sums
    rounded to the layer's type as a tensor-parallel sum rounds them.
    """

    def __init__(self, whole: Any, order: np.ndarray[Any, Any], bits: int, group: int) -> None:
        super().__init__()
        self._parts = []
        for groups in np.array_split(order, REORDER_PARTS):
            columns = (groups[:, None] * group + np.arange(group)).reshape(-1)
            self._parts.append((mx.array(columns), _columns(whole, groups, columns, bits)))
        self._whole = whole

    def _sum(self, x: mx.array) -> Any:
        total = None
        for columns, layer in self._parts:
            part = layer(mx.take(x, columns, axis=-1))
            total = part if total is None else total + part
        assert total is not None, "a layer has at least one part"
        return total

    def __call__(self, x: mx.array) -> Any:
        return (
            self._whole(x) if isinstance(self._whole, nn.Embedding | nn.QuantizedEmbedding) else self._sum(x)
        )

    def as_linear(self, x: mx.array) -> Any:
        """The tied head in the permuted order."""
        return self._sum(x)


def _columns(whole: Any, groups: np.ndarray[Any, Any], columns: np.ndarray[Any, Any], bits: int) -> Any:
    if "scales" not in whole:
        return dense(whole.weight[:, mx.array(columns)])
    out, count = whole.scales.shape
    chosen = mx.array(groups)
    packed = whole.weight.reshape(out, count, -1)[:, chosen].reshape(out, -1)
    return quantised(packed, whole.scales[:, chosen], whole.biases[:, chosen], bits)


def reorder(shard: Shard, seed: int) -> None:
    """Give every linear layer of a whole model, head included, a permuted reduction order."""
    random = np.random.default_rng(seed)
    inner = shard.model.model
    inner.embed_tokens = _reordered(inner.embed_tokens, random)
    for layer in shard.layers:
        for role in shard.family.roles:
            put(layer, role.path, _reordered(get(layer, role.path), random))


def _reordered(whole: Any, random: np.random.Generator) -> Reordered:
    if "scales" in whole:
        bits, group, count = whole.bits, whole.group_size, whole.scales.shape[1]
    else:
        bits, group = 32, gcd(whole.weight.shape[1], 8)
        count = whole.weight.shape[1] // group
    return Reordered(whole, random.permutation(count), bits, group)
