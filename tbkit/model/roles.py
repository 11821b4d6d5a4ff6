"""The table of layer roles: where each linear layer of a family stands and how it may be cut.

A family of models is one row of :data:`FAMILIES`. Nothing else in tbkit knows an architecture:
the forward pass is mlx-lm's own class, whose layers are replaced by the names given here.

Cuts: ``rows`` cuts the output width (each rank computes part of the output), ``columns`` cuts the
input width (each rank computes a partial sum, an all-reduce follows).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Unit = Literal["query_head", "kv_head", "mlp"]


class Role(msgspec.Struct, frozen=True):
    """One linear layer of a decoder layer."""

    name: str
    path: str  # attribute path inside the decoder layer
    gguf: str  # tensor name inside ``blk.N`` of a GGUF file
    cut: Literal["rows", "columns"]
    unit: Unit  # what one cut unit is


class Family(msgspec.Struct, frozen=True):
    """One row: mlx-lm module, the roles in the order in which a layer runs them, and the rest by name."""

    mlx_module: str
    roles: tuple[Role, ...]
    attention: str
    mlp: str
    norms: tuple[tuple[str, str], ...]  # (path inside the layer, GGUF name)
    query_heads_attr: str
    kv_heads_attr: str

    def role(self, name: str) -> Role:
        """The role of that name; KeyError when the family has none."""
        return next(r for r in self.roles if r.name == name)


_LLAMA = Family(
    mlx_module="mlx_lm.models.llama",
    roles=(
        Role("q_proj", "self_attn.q_proj", "attn_q", "rows", "query_head"),
        Role("k_proj", "self_attn.k_proj", "attn_k", "rows", "kv_head"),
        Role("v_proj", "self_attn.v_proj", "attn_v", "rows", "kv_head"),
        Role("o_proj", "self_attn.o_proj", "attn_output", "columns", "query_head"),
        Role("gate_proj", "mlp.gate_proj", "ffn_gate", "rows", "mlp"),
        Role("up_proj", "mlp.up_proj", "ffn_up", "rows", "mlp"),
        Role("down_proj", "mlp.down_proj", "ffn_down", "columns", "mlp"),
    ),
    attention="self_attn",
    mlp="mlp",
    norms=(("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")),
    query_heads_attr="n_heads",
    kv_heads_attr="n_kv_heads",
)

FAMILIES: dict[str, Family] = {"llama": _LLAMA}
