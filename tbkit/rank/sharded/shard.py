"""One rank's part of a model: mlx-lm's forward pass over this rank's slices.

tbkit writes no architecture. The model is mlx-lm's class; its linear, embedding and norm layers are
replaced by slices, and head counts are set, by the roles of :mod:`tbkit.model.roles`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from tbkit.model.facts import ModelFacts
from tbkit.model.roles import FAMILIES, Family, Role
from tbkit.plan import Placement, Share
from tbkit.plan.spans import span
from tbkit.rank.sharded.collectives import Collectives
from tbkit.rank.sharded.layers import PartialSum, Passed, RepeatedKVCache, VocabularyRows, grouping
from tbkit.rank.sharded.weights import Source, cut


class Wire:
    """The collectives of a shard, switched as one: the methods of the current links stand here as attributes."""

    def __init__(self, links: Collectives) -> None:
        self.set(links)

    def set(self, links: Collectives) -> None:
        """Make every layer of the shard use these links from now on."""
        self.links = links
        self.rank, self.size = links.rank, links.size
        self.all_reduce, self.all_gather = links.all_reduce, links.all_gather
        self.send, self.recv = links.send, links.recv
        self.broadcast, self.barrier = links.broadcast, links.barrier


class Shard:
    """The slices of one rank, their KV caches, and a step over them."""

    def __init__(
        self, facts: ModelFacts, plan: Placement, rank: int, source: Source, links: Collectives
    ) -> None:
        self.facts, self.plan, self.rank = facts, plan, rank
        self.share: Share = plan.shares[rank]
        self.family: Family = FAMILIES[facts.family]
        self.wire = Wire(links)
        self.tensor = plan.kind in ("tensor", "tensor-uneven")
        self.last = self.share.layers[1] == facts.layers
        self.first = self.share.layers[0] == 0
        self.model: Any = self._skeleton()
        self._fill(source)
        self.layers: list[Any] = list(self.model.model.layers)
        self.hidden_dtype = self.model.model.norm.weight.dtype if self.last else source.final_norm().dtype
        self.caches: list[Any] = []
        self.forget()

    def _skeleton(self) -> Any:
        """mlx-lm's model with this rank's number of layers; its own weights are lazy and never made."""
        f = self.facts
        module = import_module(self.family.mlx_module)
        start, stop = self.share.layers
        args = module.ModelArgs(
            model_type=f.family,
            hidden_size=f.hidden,
            num_hidden_layers=stop - start,
            intermediate_size=f.mlp_width,
            num_attention_heads=f.query_heads,
            rms_norm_eps=f.norm_eps,
            vocab_size=f.vocab_rows,
            head_dim=f.head_dim,
            num_key_value_heads=f.kv_heads,
            rope_theta=f.rope_theta,
            rope_traditional=f.rope_traditional,
            tie_word_embeddings=True,
            max_position_embeddings=f.max_context,
        )
        return module.Model(args)

    def _fill(self, source: Source) -> None:
        start = self.share.layers[0]
        for i, layer in enumerate(self.model.model.layers):
            for role in self.family.roles:
                self._place(layer, role, source.linear(start + i, role))
            for path, gguf in self.family.norms:
                layer[path].weight = source.norm(start + i, gguf)
            attention = layer[self.family.attention]
            setattr(attention, self.family.query_heads_attr, len(self.share.kv_of_query))
            setattr(attention, self.family.kv_heads_attr, len(self.share.kv_heads))
        self._fill_ends(source)

    def _place(self, layer: Any, role: Role, whole: Any) -> None:
        part = span(self.share, role.unit, self.facts.head_dim)
        sliced = cut(whole, rows=part) if role.cut == "rows" else cut(whole, columns=part)
        if role.cut == "columns" and self.tensor:
            sliced = PartialSum(sliced, self.wire)
        put(layer, role.path, sliced)

    def _fill_ends(self, source: Source) -> None:
        """Embedding, final norm and head: cut by rows in a tensor plan, whole on the end stages of a pipeline."""
        inner = self.model.model
        if self.tensor:
            counts = [s.vocab[1] - s.vocab[0] for s in self.plan.shares]
            rows = cut(source.embedding(), rows=self.share.vocab)
            inner.embed_tokens = VocabularyRows(rows, self.share.vocab[0], counts, self.wire)
        elif self.first or self.last:
            whole = cut(source.embedding())
            inner.embed_tokens = whole if self.last else EmbeddingOnly(whole)
        else:
            inner.embed_tokens = Passed()
        if self.last:
            inner.norm.weight = source.final_norm()
        else:
            inner.norm = Passed()

    def forget(self, context: int = 0) -> None:
        """Keep the first ``context`` positions of the KV caches; 0 makes them new."""
        if context:
            for cache in self.caches:
                cache.offset = context
            return
        index = grouping(list(self.share.kv_of_query))
        self.caches = [KVCache() if index is None else RepeatedKVCache(index) for _ in self.layers]

    @property
    def context(self) -> int:
        """Positions in the KV caches."""
        return int(self.caches[0].offset)

    def forward(self, ids: list[int]) -> mx.array:
        """Logits (1, len(ids), vocabulary); on a stage that is not the last, its hidden states (lazy)."""
        received = None
        if not self.tensor and not self.first:
            like = mx.zeros((1, len(ids), self.facts.hidden), dtype=self.hidden_dtype)
            received = self.wire.recv(like, self.rank - 1)
        out: mx.array = self.model(mx.array([ids]), cache=self.caches, input_embeddings=received)
        if not self.tensor and not self.last:
            self.wire.send(out, self.rank + 1)
        return out

    def step(self, token: int) -> tuple[int, mx.array]:
        """One decode step: the greedy next token, known on every rank, and the output of :meth:`forward`."""
        out = self.forward([token])
        chosen: Any = mx.argmax(out[0, -1]).astype(mx.int32) if self.last else mx.array(0, dtype=mx.int32)
        if not self.tensor and self.wire.size > 1:
            chosen = self.wire.broadcast(chosen.reshape(1), self.wire.size - 1)
        return int(chosen.item()), out

    @property
    def numbers(self) -> list[int]:
        """The number in the whole model of each layer that is really here."""
        start = self.share.layers[0]
        return [getattr(layer, "tbkit_index", start + i) for i, layer in enumerate(self.layers)]

    def owned(self) -> dict[str, Any]:
        """What this rank really holds, read back from its layers: for the coverage check of the gate.

        A count that is not the same in every layer is given as a list.
        """
        dim = self.facts.head_dim
        ends = self.model.model.embed_tokens
        whole = ends.inner if isinstance(ends, VocabularyRows | EmbeddingOnly) else ends
        return {
            "layers": self.numbers,
            "query_heads": self._held("q_proj", dim),
            "kv_heads": self._held("k_proj", dim),
            "mlp": self._held("gate_proj", 1),
            "vocabulary_rows": 0 if isinstance(whole, Passed) else _rows(whole),
        }

    def _held(self, role: str, unit: int) -> int | list[int]:
        path = self.family.role(role).path
        counts = sorted({_rows(get(layer, path)) // unit for layer in self.layers})
        return counts[0] if len(counts) == 1 else counts


class EmbeddingOnly(nn.Module):
    """The embedding of a first stage that has no head."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, ids: mx.array) -> Any:
        return self.inner(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """The input itself: the head stands on the last stage."""
        return x


def get(layer: Any, path: str) -> Any:
    """The module at an attribute path such as ``self_attn.q_proj``."""
    for part in path.split("."):
        layer = layer[part]
    return layer


def put(layer: Any, path: str, module: Any) -> None:
    """Replace the module at an attribute path."""
    *parents, name = path.split(".")
    for part in parents:
        layer = layer[part]
    layer[name] = module


def _rows(layer: Any) -> int:
    return int(layer.weight.shape[0])
