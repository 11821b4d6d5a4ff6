"""Where a shard's weights come from, and how a slice is cut out of them.

A source gives whole layers; :func:`cut` makes the slice a contiguous array of its own, so that
nothing of the rest stays in memory once the source is dropped.
"""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from tbkit.model.facts import ModelFacts
from tbkit.model.roles import Family, Role
from tbkit.rank.sharded.layers import dense, quantised

Span = tuple[int, int]


class Source(Protocol):
    """Whole layers of a model."""

    def linear(self, layer: int, role: Role) -> nn.Module:
        """The whole linear layer."""
        ...

    def norm(self, layer: int, gguf: str) -> mx.array:
        """A norm weight of a layer, shape (hidden,)."""
        ...

    def final_norm(self) -> mx.array:
        """The norm before the head, shape (hidden,)."""
        ...

    def embedding(self) -> nn.Module:
        """The whole (tied) embedding."""
        ...


def cut(layer: Any, rows: Span | None = None, columns: Span | None = None) -> Any:
    """The slice of a linear or embedding layer: ``rows`` of its output, ``columns`` of its input width.

    Columns of a quantised layer are cut on whole groups; the caller's plan guarantees it.
    """
    arrays = {"weight": layer.weight}
    if "scales" in layer:
        arrays |= {"scales": layer.scales, "biases": layer.biases}
    for name, array in arrays.items():
        if columns is not None:
            width = array.shape[1]
            whole = layer.weight.shape[1] * (32 // layer.bits) if "scales" in layer else width
            array = array[:, columns[0] * width // whole : columns[1] * width // whole]
        if rows is not None:
            array = array[rows[0] : rows[1]]
        arrays[name] = mx.contiguous(array)
    mx.eval(list(arrays.values()))
    return _like(layer, arrays)


def _like(layer: Any, arrays: dict[str, mx.array]) -> Any:
    if isinstance(layer, nn.QuantizedEmbedding):
        made = nn.QuantizedEmbedding(1, layer.group_size, group_size=layer.group_size, bits=layer.bits)
        made.weight, made.scales, made.biases = arrays["weight"], arrays["scales"], arrays["biases"]
        return made
    if isinstance(layer, nn.Embedding):
        made = nn.Embedding(1, 1)
        made.weight = arrays["weight"]
        return made
    if isinstance(layer, nn.QuantizedLinear):
        return quantised(arrays["weight"], arrays["scales"], arrays["biases"], layer.bits)
    return dense(arrays["weight"])


class GgufWeights:
    """The tensors of a GGUF file: 4-bit linear layers (Q4_1), 8-bit embedding (Q8_0), float32 norms.

    Scales and biases are cast to float32: on the CPU a step in bfloat16 is several times slower.
    """

    def __init__(self, path: str, dtype: mx.Dtype = mx.float32) -> None:
        loaded: Any = mx.load(path, format="gguf")
        self.tensors: dict[str, mx.array] = loaded
        self.dtype = dtype

    def _triple(self, name: str) -> tuple[mx.array, mx.array, mx.array]:
        scales, biases = (self.tensors[f"{name}.{part}"].astype(self.dtype) for part in ("scales", "biases"))
        return self.tensors[f"{name}.weight"], scales, biases

    def linear(self, layer: int, role: Role) -> nn.Module:
        return quantised(*self._triple(f"blk.{layer}.{role.gguf}"), bits=4)

    def norm(self, layer: int, gguf: str) -> mx.array:
        return self.tensors[f"blk.{layer}.{gguf}.weight"].astype(self.dtype)

    def final_norm(self) -> mx.array:
        return self.tensors["output_norm.weight"].astype(self.dtype)

    def embedding(self) -> nn.Module:
        weight, scales, biases = self._triple("token_embd")
        group = weight.shape[1] * 4 // scales.shape[1]
        layer = nn.QuantizedEmbedding(1, group, group_size=group, bits=8)
        layer.weight, layer.scales, layer.biases = weight, scales, biases
        return layer


ATTENTION_GAIN = (
    4.0  # random attention averages over the context: without it a fault there drowns in bfloat16
)


class RandomWeights:
    """A seeded random model of given facts: the same on every rank, in any float type, for tests of the gate."""

    def __init__(self, facts: ModelFacts, family: Family, seed: int, dtype: mx.Dtype) -> None:
        self.facts, self.family, self.seed, self.dtype = facts, family, seed, dtype

    def _normal(self, shape: tuple[int, ...], *place: int, scale: float) -> mx.array:
        number = self.seed
        for part in place:
            number = number * 1009 + part + 1
        return (mx.random.normal(shape, key=mx.random.key(number)) * scale).astype(self.dtype)

    def linear(self, layer: int, role: Role) -> nn.Module:
        f = self.facts
        width = {"query_head": f.query_heads, "kv_head": f.kv_heads}.get(role.unit, 0) * f.head_dim
        width = width or f.mlp_width
        shape = (width, f.hidden) if role.cut == "rows" else (f.hidden, width)
        gain = ATTENTION_GAIN if role.cut == "columns" and role.unit == "query_head" else 1.0
        return dense(self._normal(shape, layer, self.family.roles.index(role), scale=gain * shape[1] ** -0.5))

    def norm(self, layer: int, gguf: str) -> mx.array:  # noqa: ARG002
        return mx.ones(self.facts.hidden, dtype=self.dtype)

    def final_norm(self) -> mx.array:
        return mx.ones(self.facts.hidden, dtype=self.dtype)

    def embedding(self) -> nn.Module:
        layer = nn.Embedding(1, 1)
        layer.weight = self._normal((self.facts.vocab_rows, self.facts.hidden), 1_000_003, scale=1.0)
        return layer
