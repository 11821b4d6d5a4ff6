"""The layers that replace mlx-lm's own in a shard: slices, partial sums, vocabulary rows, repeated heads.

Each keeps only the slice of its rank. A layer that ends in a collective holds ``links``, the
object whose methods are the collectives (see :mod:`tbkit.rank.sharded.collectives`); an intervention swaps it.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from tbkit.rank.sharded.collectives import Collectives


def quantised(weight: mx.array, scales: mx.array, biases: mx.array, bits: int) -> nn.QuantizedLinear:
    """A QuantizedLinear over ready arrays: weight (out, in·bits/32) uint32, scales and biases (out, in/group)."""
    group = weight.shape[1] * 32 // bits // scales.shape[1]
    layer = nn.QuantizedLinear(group, 1, bias=False, group_size=group, bits=bits)
    layer.weight, layer.scales, layer.biases = weight, scales, biases
    return layer


def dense(weight: mx.array) -> nn.Linear:
    """A Linear over a ready weight of shape (out, in)."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = weight
    return layer


class PartialSum(nn.Module):
    """A layer cut by columns: its output is a partial sum, completed by an all-reduce over the ranks."""

    def __init__(self, inner: nn.Module, links: Collectives) -> None:
        super().__init__()
        self.inner = inner
        self.links = links

    def __call__(self, x: mx.array) -> mx.array:
        return self.links.all_reduce(self.inner(x))


class VocabularyRows(nn.Module):
    """Embedding and tied head of a range of rows: look-up ends in an all-reduce, logits in an all-gather."""

    def __init__(self, inner: Any, start: int, counts: list[int], links: Collectives) -> None:
        super().__init__()
        self.inner = inner
        self.start, self.counts = start, counts
        self.links = links
        self.rows = inner.weight.shape[0]

    def __call__(self, ids: mx.array) -> mx.array:
        local = ids - self.start
        mine = (local >= 0) & (local < self.rows)
        found = self.inner(mx.where(mine, local, 0))
        return self.links.all_reduce(mx.where(mine[..., None], found, mx.zeros_like(found)))

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits (…, vocabulary) on every rank from the rows of each."""
        mine = self.inner.as_linear(x)
        widest = max(self.counts)
        if self.rows < widest:
            padding = [(0, 0)] * (mine.ndim - 1) + [(0, widest - self.rows)]
            mine = mx.pad(mine, padding)
        parts = self.links.all_gather(mine)  # (ranks, …, widest)
        whole: mx.array = mx.concatenate([parts[i][..., :n] for i, n in enumerate(self.counts)], axis=-1)
        return whole


class RepeatedKVCache(KVCache):
    """A KV cache that stores each head once and hands out head ``index[i]`` for query head i.

    Uneven cuts leave a rank with query heads whose KV heads do not pair in equal groups.
    """

    def __init__(self, index: list[int]) -> None:
        super().__init__()
        self.index = mx.array(index)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = super().keys_and_values()
        return mx.take(keys, self.index, axis=1), mx.take(values, self.index, axis=1)


class Passed(nn.Module):
    """Hands its input on: the norm and head of a pipeline stage that is not the last."""

    def __call__(self, x: mx.array) -> mx.array:
        return x

    def as_linear(self, x: mx.array) -> mx.array:
        """The input itself."""
        return x


def grouping(kv_of_query: list[int]) -> list[int] | None:
    """None where the query heads pair with the KV heads in equal contiguous groups, else the index to repeat by."""
    heads = max(kv_of_query) + 1
    if len(kv_of_query) % heads == 0:
        per_head = len(kv_of_query) // heads
        if kv_of_query == [i // per_head for i in range(len(kv_of_query))]:
            return None
    return kv_of_query
