"""Second sources: the pieces of a step timed alone, the cost of a graph cut, and of the messages.

Pieces are timed with their graph built before the clock starts, so that they hold execution alone;
the building of the whole graph is a piece of its own. Times are microseconds a step.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from tbkit.rank.sharded.layers import PartialSum, Passed, VocabularyRows
from tbkit.rank.sharded.shard import EmbeddingOnly, Shard, get, put

if TYPE_CHECKING:
    from tbkit.fabric import Group

CHAIN = 62  # cuts of the crossing micro-benchmark, about as many as a step of a 30-layer model has


class Constant(nn.Module):
    """Stands for a layer whose work is not timed: hands out a ready array."""

    def __init__(self, value: mx.array) -> None:
        super().__init__()
        self._value = value

    def __call__(self, *_: Any, **__: Any) -> mx.array:
        return self._value


def timed_us(build: Callable[[], Any]) -> float:
    """Microseconds to evaluate what ``build`` makes, its building not counted."""
    graph = build()
    begun = perf_counter_ns()
    mx.eval(graph)
    return (perf_counter_ns() - begun) / 1e3


class Pieces:
    """The pieces of one shard's step, from its own layers."""

    def __init__(self, shard: Shard, token: int) -> None:
        self.shard, self.token = shard, token
        self.hidden = mx.zeros((1, 1, shard.facts.hidden), dtype=shard.hidden_dtype) + 0.01
        self.logits = mx.random.normal((1, 1, shard.facts.vocab_rows))
        mx.eval(self.hidden, self.logits)

    def all(self, context: int) -> dict[str, float]:
        """One timing of every piece, by name; caches end at ``context`` again."""
        times = {role.name: self._role(role.path) for role in self.shard.family.roles}
        times["attention"] = self._core(self.shard.family.attention)
        times["activation"] = self._core(self.shard.family.mlp)
        times |= self._ends() | {"norms": self._norms(), "sampling": self._sampling()}
        times["build"] = self._build()
        self.shard.forget(context)
        return times

    def _role(self, path: str) -> float:
        layers = [_bare(get(layer, path)) for layer in self.shard.layers]
        x = mx.zeros((1, 1, _width(layers[0])), dtype=self.shard.hidden_dtype) + 0.01
        mx.eval(x)
        return timed_us(lambda: [layer(x) for layer in layers])

    def _core(self, part: str) -> float:
        """Attention or MLP without its projections: mlx-lm's own code over constants."""
        kept = []
        for layer in self.shard.layers:
            for role in self.shard.family.roles:
                if role.path.startswith(part + "."):
                    inner = get(layer, role.path)
                    kept.append((layer, role.path, inner))
                    width = _height(_bare(inner)) if role.cut == "rows" else self.shard.facts.hidden
                    ready = mx.zeros((1, 1, width), dtype=self.shard.hidden_dtype) + 0.01
                    mx.eval(ready)
                    put(layer, role.path, Constant(ready) if role.cut == "rows" else Passed())
        try:
            return timed_us(lambda: self._run_part(part))
        finally:
            for layer, path, inner in kept:
                put(layer, path, inner)

    def _run_part(self, part: str) -> list[mx.array]:
        attention = part == self.shard.family.attention
        pairs = zip(self.shard.layers, self.shard.caches, strict=True)
        return [
            layer[part](self.hidden, None, cache) if attention else layer[part](self.hidden)
            for layer, cache in pairs
        ]

    def _norms(self) -> float:
        """Norms and residual sums: the layers in a chain, attention and MLP stubbed."""
        family, stub = self.shard.family, Constant(self.hidden)
        kept = [(layer, layer[family.attention], layer[family.mlp]) for layer in self.shard.layers]
        for layer, _, _ in kept:
            layer[family.attention], layer[family.mlp] = stub, stub
        try:
            return timed_us(self._chain)
        finally:
            for layer, attention, mlp in kept:
                layer[family.attention], layer[family.mlp] = attention, mlp

    def _chain(self) -> mx.array:
        h = self.hidden
        for layer in self.shard.layers:
            h = layer(h)
        normed: mx.array = self.shard.model.model.norm(h)
        return normed

    def _ends(self) -> dict[str, float]:
        ends = self.shard.model.model.embed_tokens
        inner = ends.inner if isinstance(ends, VocabularyRows | EmbeddingOnly) else ends
        times = {}
        if self.shard.first:
            times["embedding"] = timed_us(lambda: inner(mx.array([[0]])))
        if self.shard.last:
            times["head"] = timed_us(lambda: inner.as_linear(self.hidden))
        return times

    def _sampling(self) -> float:
        return timed_us(lambda: mx.argmax(self.logits[0, -1])) if self.shard.last else 0.0

    def _build(self) -> float:
        """The host step: making the graph of one step; the graph is thrown away and the caches put back."""
        kept = [(cache.keys, cache.values) for cache in self.shard.caches]
        ids = mx.array([[self.token]])
        begun = perf_counter_ns()
        self.shard.model(
            ids, cache=self.shard.caches, input_embeddings=None if self.shard.first else self.hidden
        )
        took = (perf_counter_ns() - begun) / 1e3
        for cache, (keys, values) in zip(self.shard.caches, kept, strict=True):
            cache.keys, cache.values = keys, values
        return took

    def segments(self, context: int) -> list[float]:
        """Half-layers timed one by one, microseconds: the scatter from which waiting is replayed."""
        times = []
        for layer, cache in zip(self.shard.layers, self.shard.caches, strict=True):
            attention, mlp = layer[self.shard.family.attention], layer[self.shard.family.mlp]
            times.append(timed_us(lambda a=attention, c=cache: a(self.hidden, None, c)))  # type: ignore[misc]
            times.append(timed_us(lambda m=mlp: m(self.hidden)))  # type: ignore[misc]
        self.shard.forget(context)
        return times


def _bare(layer: Any) -> Any:
    return layer.inner if isinstance(layer, PartialSum) else layer


def _height(layer: Any) -> int:
    return int(layer.weight.shape[0])


def _width(layer: Any) -> int:
    packing = 32 // layer.bits if "scales" in layer else 1
    return int(layer.weight.shape[1]) * packing


def crossing_us(hidden: int) -> float:
    """One graph cut: evaluate, export the buffer, continue; microseconds, from a chain with and without cuts."""

    def chain(cut: bool) -> float:
        x = mx.zeros((1, 1, hidden)) + 1.0
        mx.eval(x)
        begun = perf_counter_ns()
        for _ in range(CHAIN):
            x = x * 1.0001
            if cut:
                mx.eval(x)
                memoryview(x)  # type: ignore[arg-type]  # an mlx array has the buffer protocol
        mx.eval(x)
        return (perf_counter_ns() - begun) / 1e3

    return (chain(True) - chain(False)) / CHAIN


def messages_us(group: Group, values: dict[str, tuple[int, int]], repeats: int = 31) -> dict[str, float]:
    """Median microseconds of each (all-reduce bytes, all-gather bytes): the α and β of the channel in use.

    ``values`` names sizes in float32 elements; 0 leaves a collective out.
    """
    return {name: _message_us(group, reduce, gather, repeats) for name, (reduce, gather) in values.items()}


def _message_us(group: Group, reduce: int, gather: int, repeats: int) -> float:
    x = mx.zeros(reduce or gather) + 1.0
    mx.eval(x)
    small = np.asarray(x) if x.size == 1 else x
    times = []
    for _ in range(repeats):
        group.barrier()
        begun = perf_counter_ns()
        if reduce:
            group.all_reduce(small, out=small)
        else:
            group.all_gather(small)
        times.append((perf_counter_ns() - begun) / 1e3)
    return median(times)
