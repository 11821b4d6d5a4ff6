"""Facts of a model as its configuration or its file's header states them; nothing is loaded.

Two sources are read: a Hugging Face ``config.json`` (:func:`facts_from_config`) and the metadata of a GGUF
file (:func:`facts_from_gguf_metadata`). A number that makes no sense is an :class:`InputError` that names
file and key; a key that is absent and has no default of its own is listed in :attr:`ModelFacts.missing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tbkit.errors import InputError

FAMILIES = {"llama": "llama", "mistral": "llama"}  # model_type or architecture -> family
_DTYPE_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
_MOST_COUNTED = 100_000  # layers, heads, bits of a weight
_MOST_WIDE = 2**31  # hidden, MLP, vocabulary, context


class Storage(msgspec.Struct, frozen=True):
    """How the weights are stored; 0 where it is not known.

    ``*_cost_bits`` are the bits that one weight takes together with its share of scales and biases
    (4-bit in groups of 32 with a 16-bit scale and bias: 5.0).
    """

    group_size: int = 1
    weight_bits: int = 0
    embedding_bits: int = 0
    weight_cost_bits: float = 0.0
    embedding_cost_bits: float = 0.0
    norm_bits: int = 0
    tied: bool = False
    weights_bytes: int | None = None


class ModelFacts(msgspec.Struct, frozen=True):
    """What a placement needs to know of a model. Counts are whole numbers, 0 where ``missing`` names the key.

    Weights of a layer: q ``(query_heads*head_dim, hidden)``, k and v ``(kv_heads*head_dim, hidden)``,
    o ``(hidden, query_heads*head_dim)``, gate and up ``(mlp_width, hidden)``, down ``(hidden, mlp_width)``;
    the embedding and, unless ``tied``, the head are ``(vocab_rows, hidden)``.
    """

    name: str
    family: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_rows: int
    tied: bool
    norm_eps: float
    rope_theta: float
    rope_traditional: bool
    max_context: int
    group_size: int = 1  # quantisation group of the linear layers; 1 where they are not quantised
    weight_bits: int = 0  # 0: not known
    embedding_bits: int = 0
    weight_cost_bits: float = 0.0  # with scales and biases, see Storage
    embedding_cost_bits: float = 0.0
    norm_bits: int = 0
    weights_bytes: int | None = None  # all weights as stored; None where not known
    missing: tuple[str, ...] = ()  # keys that the source lacks

    @property
    def queries_per_kv(self) -> int:
        """How many query heads share one KV head; query head ``q`` reads KV head ``q // queries_per_kv``."""
        return self.query_heads // self.kv_heads

    def attention_weights(self, query_heads: int, kv_heads: int) -> int:
        """Weights of q, k, v and o in one layer for so many heads."""
        return 2 * (query_heads + kv_heads) * self.head_dim * self.hidden

    def mlp_weights(self, width: int) -> int:
        """Weights of gate, up and down in one layer for so many units."""
        return 3 * width * self.hidden

    def table_weights(self, rows: int) -> int:
        """Weights of so many rows of the embedding, or of the head."""
        return rows * self.hidden

    def bytes_of(self, linear: int, table: int, norms: int) -> float | None:
        """Bytes as stored of so many weights of each sort; None where their bits are not known."""
        if not (self.weight_cost_bits and self.embedding_cost_bits and self.norm_bits):
            return None
        bits = linear * self.weight_cost_bits + table * self.embedding_cost_bits + norms * self.norm_bits
        return bits / 8

    def computed_bytes(self) -> float | None:
        """Bytes of all weights by shapes and bits alone; equal to ``weights_bytes`` for a uniform file."""
        layer = self.attention_weights(self.query_heads, self.kv_heads) + self.mlp_weights(self.mlp_width)
        tables = self.table_weights(self.vocab_rows) * (1 if self.tied else 2)
        return self.bytes_of(self.layers * layer, tables, (2 * self.layers + 1) * self.hidden)


class _Keys:
    """Typed, bounded look-ups in one mapping; notes the keys that are absent."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source
        self.missing: list[str] = []

    def raw(self, key: str) -> Any:
        value: Any = self.values.get(key)
        return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value

    def count(self, key: str, default: int | None = None, *, most: int = _MOST_COUNTED) -> int:
        """A whole number in 1..most; ``default`` when absent, else 0 and the key noted as missing."""
        value = self.raw(key)
        if value is None:
            if default is None:
                self.missing.append(key)
            return default or 0
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, f"a whole number from 1 to {most}", value)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, "a positive number", value)
        return float(f"{value:.7g}")  # GGUF holds float32: 9.999999747e-06 is meant as 1e-05

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def wrong(self, key: str, rule: str, value: Any) -> InputError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InputError(
            f"{self.source}: {key}",
            f"must be {rule}",
            shown,
            "Remedy: take the file as its model's author published it",
            key=key,
        )


def _family(source: str, key: str, kind: Any) -> str:
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    known = ", ".join(sorted(FAMILIES))
    raise InputError(
        f"{source}: {key}",
        "must be a family that tbkit can cut",
        repr(kind),
        f"Remedy: choose a model of {known}",
        key=key,
    )


def _check_heads(keys: _Keys, names: tuple[str, str, str, str], facts: ModelFacts) -> None:
    """Query heads are a multiple of KV heads, and the hidden size of heads where no head width is given."""
    query, kv, hidden, width = names
    if facts.query_heads and facts.kv_heads and facts.query_heads % facts.kv_heads:
        got = f"{facts.query_heads} query heads, {facts.kv_heads} KV heads"
        raise InputError(
            f"{keys.source}: {query}",
            f"must be a multiple of {kv}",
            got,
            "Remedy: take the file as its model's author published it",
            key=query,
        )
    if keys.raw(width) is None and facts.query_heads and facts.hidden % facts.query_heads:
        got = f"{hidden} {facts.hidden}, {query} {facts.query_heads}"
        raise InputError(
            f"{keys.source}: {query}",
            f"must divide {hidden}, or {width} must be given",
            got,
            f"Remedy: state {width}, or correct {query}",
            key=query,
        )


def _config_storage(config: Mapping[str, Any], text: Mapping[str, Any], source: str) -> Storage:
    """Group and bits by ``quantization`` (mlx), ``quantization_config`` (others), else the dtype."""
    found = next(
        (c[k] for c in (config, text) for k in ("quantization", "quantization_config") if c.get(k)), None
    )
    dtype = next((c[k] for c in (text, config) for k in ("dtype", "torch_dtype") if c.get(k)), None)
    plain = _DTYPE_BITS.get(str(dtype).removeprefix("torch."), 0)
    if found is None:
        return Storage(1, plain, plain, plain, plain, plain)
    if not isinstance(found, dict):
        raise _Keys({}, source).wrong("quantization", "an object with bits and group_size", found)
    keys = _Keys({f"quantization.{k}": v for k, v in found.items()}, source)
    bits, group = keys.count("quantization.bits", 0), keys.count("quantization.group_size", 1)
    cost = bits + 32 / group if bits and group > 1 else float(bits)
    table = found.get("model.embed_tokens")
    if table is False or (table is None and "quant_method" in found):
        return Storage(group, bits, plain or 16, cost, plain or 16, plain or 16)
    own = _Keys(table if isinstance(table, dict) else {}, f"{source}: quantization.model.embed_tokens")
    own_bits, own_group = own.count("bits", bits), own.count("group_size", group)
    own_cost = own_bits + 32 / own_group if own_bits and own_group > 1 else float(own_bits)
    return Storage(group, bits, own_bits, cost, own_cost, plain or 16)


def _rope_theta(keys: _Keys, text: Mapping[str, Any]) -> float:
    nested = text.get("rope_parameters")
    inner = _Keys(nested if isinstance(nested, dict) else {}, f"{keys.source}: rope_parameters")
    return keys.number("rope_theta", inner.number("rope_theta", 10_000.0))


def facts_from_config(config: Mapping[str, Any], name: str, *, source: str = "config.json") -> ModelFacts:
    """Facts from a Hugging Face ``config.json``; a nested ``text_config`` is taken where there is one.

    Absent keys take the defaults of the family's own configuration class (KV heads = query heads, head
    width = hidden / heads, RoPE base 10 000, norm epsilon 1e-6, untied); those without one are listed in
    ``missing``. Raises :class:`InputError` (file, key, rule, got, remedy) for an unknown family or numbers
    that make no sense.
    """
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    keys = _Keys(text, source)
    kind = text.get("model_type", config.get("model_type"))
    if kind is None:
        keys.missing.append("model_type")
    family = _family(source, "model_type", kind) if kind is not None else ""
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size", most=_MOST_WIDE)
    kv = keys.count("num_key_value_heads", heads)
    facts = ModelFacts(
        name=name,
        family=family,
        layers=keys.count("num_hidden_layers"),
        hidden=hidden,
        query_heads=heads,
        kv_heads=kv,
        head_dim=keys.count("head_dim", hidden // heads if heads else 0, most=_MOST_WIDE),
        mlp_width=keys.count("intermediate_size", most=_MOST_WIDE),
        vocab_rows=keys.count("vocab_size", most=_MOST_WIDE),
        tied=keys.flag("tie_word_embeddings", bool(config.get("tie_word_embeddings", False))),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys, text),
        rope_traditional=False,
        max_context=keys.count("max_position_embeddings", 2048, most=_MOST_WIDE),
        missing=tuple(keys.missing),
    )
    _check_heads(keys, ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim"), facts)
    return _stored(facts, _config_storage(config, text, source))


def facts_from_gguf_metadata(
    meta: Mapping[str, Any], name: str = "", *, storage: Storage | None = None, source: str = "GGUF metadata"
) -> ModelFacts:
    """Facts from GGUF metadata: plain values, or the mlx arrays that ``mx.load`` returns.

    ``storage`` comes from the tensors' headers (:mod:`tbkit.model.gguf`); without it bits and bytes are
    unknown and the model is taken as tied. RoPE is ``traditional``: the llama conversion interleaves q and
    k. Raises :class:`InputError` as :func:`facts_from_config` does.
    """
    kind = meta.get("general.architecture")
    family = _family(source, "general.architecture", kind)
    keys = _Keys(meta, source)
    names = tuple(
        f"{kind}.{k}"
        for k in (
            "attention.head_count",
            "attention.head_count_kv",
            "embedding_length",
            "attention.key_length",
        )
    )
    heads, hidden = keys.count(names[0]), keys.count(names[2], most=_MOST_WIDE)
    tokens = meta.get("tokenizer.ggml.tokens")
    facts = ModelFacts(
        name=name or str(meta.get("general.name", "unnamed")),
        family=family,
        layers=keys.count(f"{kind}.block_count"),
        hidden=hidden,
        query_heads=heads,
        kv_heads=keys.count(names[1], heads),
        head_dim=keys.count(names[3], hidden // heads if heads else 0, most=_MOST_WIDE),
        mlp_width=keys.count(f"{kind}.feed_forward_length", most=_MOST_WIDE),
        vocab_rows=keys.count(
            f"{kind}.vocab_size", len(tokens) if tokens is not None else None, most=_MOST_WIDE
        ),
        tied=True,
        norm_eps=keys.number(f"{kind}.attention.layer_norm_rms_epsilon", 1e-5),
        rope_theta=keys.number(f"{kind}.rope.freq_base", 10_000.0),
        rope_traditional=True,
        max_context=keys.count(f"{kind}.context_length", 2048, most=_MOST_WIDE),
        missing=tuple(keys.missing),
    )
    _check_heads(keys, (names[0], names[1], names[2], names[3]), facts)
    return _stored(facts, storage or Storage(tied=True), tied=True)


def _stored(facts: ModelFacts, storage: Storage, *, tied: bool = False) -> ModelFacts:
    """The facts with what is known of storage; bytes by shapes and bits where no source gives them."""
    facts = msgspec.structs.replace(
        facts,
        tied=storage.tied if tied else facts.tied,
        group_size=storage.group_size,
        weight_bits=storage.weight_bits,
        embedding_bits=storage.embedding_bits,
        weight_cost_bits=storage.weight_cost_bits,
        embedding_cost_bits=storage.embedding_cost_bits,
        norm_bits=storage.norm_bits,
    )
    computed = None if facts.missing else facts.computed_bytes()
    known = storage.weights_bytes if storage.weights_bytes else None if computed is None else round(computed)
    return msgspec.structs.replace(facts, weights_bytes=known)
