"""What a placement is: for each rank, the share of the model that it holds."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Literal

import msgspec

from tbkit.model.facts import ModelFacts

Range = tuple[int, int]
Kind = Literal["one", "tensor", "tensor-uneven", "pipeline"]
KINDS: tuple[Kind, ...] = ("one", "tensor", "tensor-uneven", "pipeline")


class Share(msgspec.Struct, frozen=True):
    """What one rank holds, in every layer of ``layers``. Ranges are (start, stop), stop outside.

    ``kv_heads`` are the KV heads held, ``kv_of_query[i]`` is the index into them that query head
    ``query_heads[0] + i`` reads. ``vocab`` are rows of the embedding where ``has_embedding`` and of the
    head where ``has_head``. ``repeated`` names what other ranks hold as well: "kv_head 1", "norms",
    "embedding".
    """

    rank: int
    layers: Range
    query_heads: Range
    kv_heads: tuple[int, ...]
    kv_of_query: tuple[int, ...]
    mlp: Range
    vocab: Range
    has_embedding: bool
    has_head: bool
    repeated: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True):
    """One way to place a model on ``nodes`` nodes.

    ``fits`` is None where the facts lack a key. ``reasons`` say why it does not fit or cannot be decided;
    ``shares`` has one entry a rank, and is empty then. ``split`` puts the cut in words.
    """

    kind: Kind
    nodes: int
    fits: bool | None
    reasons: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    split: str = ""
    model: str = ""  # the name of the model that is placed


def near_equal(total: int, parts: int) -> list[Range]:
    """Contiguous ranges over ``0..total`` whose lengths differ by at most one, the longer ones first."""
    short, longer = divmod(total, parts)
    edges = [n * short + min(n, longer) for n in range(parts + 1)]
    return list(pairwise(edges))


def length(part: Range) -> int:
    """How many the range holds."""
    return part[1] - part[0]


def sizes_in_words(sizes: list[int]) -> str:
    """``5 + 4``; with more than eight parts, runs of equal ones as ``3 (2 times) + 2 (14 times)``."""
    if len(sizes) <= 8:
        return " + ".join(map(str, sizes))
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    return " + ".join(f"{size} ({count} times)" if count > 1 else str(size) for size, count in runs)


_TIMES = {2: "twice", 3: "three times", 4: "four times"}


def _repeats_in_words(shares: tuple[Share, ...], kv_heads: int) -> str:
    """``(head 1 twice)``, ``(heads 1 and 2 twice)``; nothing where no KV head is repeated."""
    holders = [0] * kv_heads
    for share in shares:
        for head in share.kv_heads:
            holders[head] += 1
    words = []
    for count in sorted({n for n in holders if n > 1}, reverse=True):
        heads = [str(head) for head, n in enumerate(holders) if n == count]
        listed = heads[0] if len(heads) == 1 else f"{', '.join(heads[:-1])} and {heads[-1]}"
        words.append(f"head{'s' * (len(heads) > 1)} {listed} {_TIMES.get(count, f'{count} times')}")
    return f" ({', '.join(words)})" if words else ""


def tensor_split(facts: ModelFacts, shares: tuple[Share, ...]) -> str:
    """The cut of a tensor placement in words."""
    kv = [len(s.kv_heads) for s in shares]
    parts = [
        f"query heads {sizes_in_words([length(s.query_heads) for s in shares])}",
        f"KV heads {sizes_in_words(kv)}{_repeats_in_words(shares, facts.kv_heads)}",
        f"MLP {sizes_in_words([length(s.mlp) for s in shares])}",
        f"vocabulary {sizes_in_words([length(s.vocab) for s in shares])}",
    ]
    return ", ".join(parts)


def pipeline_split(facts: ModelFacts, shares: tuple[Share, ...]) -> str:
    """The cut of a pipeline in words."""
    words = f"layers {sizes_in_words([length(s.layers) for s in shares])}"
    return words + (", embedding on the first and the last (tied)" if facts.tied else "")


def weights_bytes(facts: ModelFacts, share: Share) -> int | None:
    """Bytes of the weights that a rank holds, as stored in the file; None where the facts do not tell.

    Counted by shapes and bits; for a file whose tensors are not stored alike, scaled so that one node's
    share is the file's own sum.
    """
    layers, rows = length(share.layers), length(share.vocab)
    tables = share.has_embedding + share.has_head
    tables = min(tables, 1) if facts.tied else tables
    linear = facts.attention_weights(length(share.query_heads), len(share.kv_heads)) + facts.mlp_weights(
        length(share.mlp)
    )
    norms = (2 * layers + share.has_head) * facts.hidden
    held = facts.bytes_of(layers * linear, tables * facts.table_weights(rows), norms)
    whole = facts.computed_bytes()
    if held is None or not whole or facts.weights_bytes is None:
        return None
    return round(held * facts.weights_bytes / whole)
