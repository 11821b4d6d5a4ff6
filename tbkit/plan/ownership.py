"""The check that a placement owns each part of the model once and names what it repeats.

It reads the shares alone, never the rule that made them, and works on ranges, so a vocabulary of millions
costs as much as one of ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tbkit.errors import PlanError
from tbkit.model.facts import ModelFacts
from tbkit.plan.placement import Placement, Range, Share

_SHOWN = 6  # problems in the message; all of them are in the error's facts


def check(facts: ModelFacts, placement: Placement) -> None:
    """:class:`PlanError` naming what is missing or doubled and on which ranks; silent where all is right."""
    found = problems(facts, placement)
    if not found:
        return
    shown = "; ".join(found[:_SHOWN]) + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    raise PlanError(
        f"{facts.name}, {placement.kind} on {placement.nodes}",
        "each layer, query head, MLP unit and vocabulary row must be owned once, or repeated by name",
        shown,
        "Remedy: take a placement of tb.plan as it is",
        problems=found,
    )


def problems(facts: ModelFacts, placement: Placement) -> tuple[str, ...]:
    """Everything that is wrong with the ownership, in words; empty where nothing is."""
    shares = placement.shares
    ranks = [share.rank for share in shares]
    if ranks != list(range(placement.nodes)):
        return (f"shares are of ranks {ranks}, not 0 to {placement.nodes - 1}",)
    if outside := list(_outside(facts, shares)):
        return tuple(outside)
    found = [*_layers(facts, shares), *_tables(facts, shares), *_kv_maps(facts, shares)]
    return tuple(found + list(_names(facts, shares)))


def _span(part: Range, word: str) -> str:
    """``layer 7``, ``layers 7..9``."""
    start, stop = part
    return f"{word} {start}" if stop - start == 1 else f"{word}s {start}..{stop - 1}"


def _ranks(owners: Iterable[int]) -> str:
    listed = [str(rank) for rank in owners]
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {', '.join(listed[:-1])} and {listed[-1]}"


def _outside(facts: ModelFacts, shares: tuple[Share, ...]) -> Iterator[str]:
    """Ranges that run backwards or leave the model."""
    for share in shares:
        ranges = (
            (share.layers, facts.layers, "layer"),
            (share.query_heads, facts.query_heads, "query head"),
            (share.mlp, facts.mlp_width, "MLP unit"),
            (share.vocab, facts.vocab_rows, "vocabulary row"),
        )
        for (start, stop), total, word in ranges:
            if not 0 <= start <= stop <= total:
                yield f"rank {share.rank} claims {word}s from {start} to before {stop} of {total}"
        if wrong := [head for head in share.kv_heads if not 0 <= head < facts.kv_heads]:
            yield f"rank {share.rank} claims KV heads {wrong} of {facts.kv_heads}"


def owners_of(parts: Iterable[tuple[int, Range]], total: int) -> list[tuple[Range, tuple[int, ...]]]:
    """The longest stretches of ``0..total`` with the same owners, each with those ranks."""
    held = [(rank, part) for rank, part in parts if part[0] < part[1]]
    edges = sorted({0, total, *(edge for _, part in held for edge in part)})
    found: list[tuple[Range, tuple[int, ...]]] = []
    for start, stop in pairwise(edges):
        owners = tuple(rank for rank, (a, b) in held if a <= start and stop <= b)
        if found and found[-1][1] == owners:
            found[-1] = ((found[-1][0][0], stop), owners)
        else:
            found.append(((start, stop), owners))
    return found


def _layers(facts: ModelFacts, shares: tuple[Share, ...]) -> Iterator[str]:
    """Layers without an owner or with two whole ones; inside a layer, heads and MLP units."""
    for stretch, ranks in owners_of(((s.rank, s.layers) for s in shares), facts.layers):
        here = [shares[rank] for rank in ranks]
        heads = owners_of(((s.rank, s.query_heads) for s in here), facts.query_heads)
        units = owners_of(((s.rank, s.mlp) for s in here), facts.mlp_width)
        if not ranks:
            yield f"{_span(stretch, 'layer')} {_has(stretch)} no owner"
        elif all(len(owners) > 1 for _, owners in heads + units):
            yield f"{_span(stretch, 'layer')} owned by {_ranks(ranks)}"
        else:
            yield from _owned_once(heads, "query head", f" of {_span(stretch, 'layer')}")
            yield from _owned_once(units, "MLP unit", f" of {_span(stretch, 'layer')}")


def _has(part: Range) -> str:
    return "has" if part[1] - part[0] == 1 else "have"


def _owned_once(stretches: list[tuple[Range, tuple[int, ...]]], word: str, where: str) -> Iterator[str]:
    for part, owners in stretches:
        if not owners:
            yield f"{_span(part, word)}{where} {_has(part)} no owner"
        elif len(owners) > 1:
            yield f"{_span(part, word)}{where} owned by {_ranks(owners)}"


def _tables(facts: ModelFacts, shares: tuple[Share, ...]) -> Iterator[str]:
    """Rows of the embedding and of the head, each table owned once."""
    for share in shares:
        if share.vocab[0] < share.vocab[1] and not (share.has_embedding or share.has_head):
            yield f"rank {share.rank} holds vocabulary rows, but neither embedding nor head"
        if share.vocab[0] == share.vocab[1] and (share.has_embedding or share.has_head):
            yield f"rank {share.rank} has embedding or head, but no vocabulary rows"
    tables = (
        ("embedding", [s for s in shares if s.has_embedding]),
        ("head", [s for s in shares if s.has_head]),
    )
    for word, holders in tables:
        rows = owners_of(((s.rank, s.vocab) for s in holders), facts.vocab_rows)
        yield from _owned_once(rows, "vocabulary row", f" of the {word}")


def _kv_maps(facts: ModelFacts, shares: tuple[Share, ...]) -> Iterator[str]:
    """Each query head reads the KV head that is its own, and no KV head is held for nothing."""
    for share in shares:
        queries = range(*share.query_heads)
        needed = {query // facts.queries_per_kv for query in queries}
        if len(set(share.kv_heads)) != len(share.kv_heads):
            yield f"rank {share.rank} holds a KV head twice: {list(share.kv_heads)}"
        for head in sorted(needed - set(share.kv_heads)):
            yield f"rank {share.rank} lacks KV head {head}, which its query heads need"
        for head in sorted(set(share.kv_heads) - needed):
            yield f"rank {share.rank} holds KV head {head}, which none of its query heads needs"
        if needed == set(share.kv_heads):
            yield from _query_map(facts, share, queries)


def _query_map(facts: ModelFacts, share: Share, queries: range) -> Iterator[str]:
    if len(share.kv_of_query) != len(queries):
        yield f"rank {share.rank} maps {len(share.kv_of_query)} query heads to KV heads, owns {len(queries)}"
        return
    for query, index in zip(queries, share.kv_of_query, strict=True):
        own = query // facts.queries_per_kv
        read = share.kv_heads[index] if 0 <= index < len(share.kv_heads) else None
        if read != own:
            yield f"rank {share.rank} gives query head {query} KV head {read}, it needs {own}"


def _held_twice(facts: ModelFacts, shares: tuple[Share, ...]) -> dict[str, set[int]]:
    """What is held by several ranks, by the name that it must have, with those ranks."""
    twice: dict[str, set[int]] = {}
    for _, ranks in owners_of(((s.rank, s.layers) for s in shares), facts.layers):
        if len(ranks) > 1:
            twice.setdefault("norms", set()).update(ranks)
        for head in range(facts.kv_heads):
            holders = {rank for rank in ranks if head in shares[rank].kv_heads}
            if len(holders) > 1:
                twice.setdefault(f"kv_head {head}", set()).update(holders)
    heads = {s.rank for s in shares if s.has_head}
    if len(heads) > 1:
        twice.setdefault("norms", set()).update(heads)
    if facts.tied:
        for _, ranks in owners_of(((s.rank, s.vocab) for s in shares), facts.vocab_rows):
            if len(ranks) > 1:
                twice.setdefault("embedding", set()).update(ranks)
    return twice


def _names(facts: ModelFacts, shares: tuple[Share, ...]) -> Iterator[str]:
    """Repeats that are not named, and names of what is not repeated."""
    twice = _held_twice(facts, shares)
    for share in shares:
        held = {name for name, ranks in twice.items() if share.rank in ranks}
        for name in sorted(held - set(share.repeated)):
            others = _ranks(sorted(twice[name] - {share.rank}))
            yield f"rank {share.rank} holds {name} as {others} do, and does not name it as repeated"
        for name in sorted(set(share.repeated) - held):
            yield f"rank {share.rank} names {name} as repeated, and no other rank holds it"
