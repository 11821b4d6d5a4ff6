"""The kinds of placement, each with its rules: it fits, is refused with the reason, or cannot be decided.

Heads are cut where both a head and a quantisation group end: the output projection is cut along its input,
whose groups must stay whole. MLP units are cut in whole groups for the same reason; vocabulary rows are
free.
"""

from __future__ import annotations

from math import gcd

from tbkit.model.facts import ModelFacts
from tbkit.plan.placement import Kind, Placement, Range, Share, near_equal, pipeline_split, tensor_split


def placements(facts: ModelFacts, nodes: int) -> tuple[Placement, ...]:
    """Every kind on so many nodes, in the order one, tensor, tensor-uneven, pipeline."""
    even, uneven = _even_reasons(facts, nodes), _uneven_reasons(facts, nodes)
    if even and not uneven:
        even = (*even[:-1], f"{even[-1]}; tensor-uneven can")
    if not even and nodes > 1:
        uneven = ("tensor divides evenly, so nothing needs to be repeated",)
    return (
        _decided(facts, "one", nodes, _one_reasons(nodes)),
        _decided(facts, "tensor", nodes, even),
        _decided(facts, "tensor-uneven", nodes, uneven),
        _decided(facts, "pipeline", nodes, _pipeline_reasons(facts, nodes)),
    )


def _decided(facts: ModelFacts, kind: Kind, nodes: int, reasons: tuple[str, ...]) -> Placement:
    """Refused for its reasons; undecided where a key is missing; else with its shares."""
    certain = bool(reasons) and (kind == "one" or nodes == 1)  # by the nodes alone, whatever is missing
    if facts.missing and not certain:
        return Placement(
            kind,
            nodes,
            None,
            tuple(f"cannot decide: {key} missing" for key in facts.missing),
            model=facts.name,
        )
    if reasons:
        return Placement(kind, nodes, False, reasons, model=facts.name)
    if kind == "one":
        return Placement(kind, nodes, True, (), (_whole(facts),), "all on one node", model=facts.name)
    if kind == "pipeline":
        shares = _pipeline_shares(facts, nodes)
        return Placement(kind, nodes, True, (), shares, pipeline_split(facts, shares), model=facts.name)
    shares = _tensor_shares(facts, nodes)
    return Placement(kind, nodes, True, (), shares, tensor_split(facts, shares), model=facts.name)


def _one_reasons(nodes: int) -> tuple[str, ...]:
    return () if nodes == 1 else (f"uses 1 of the {nodes} nodes; plan for 1 node to run it so",)


def _pipeline_reasons(facts: ModelFacts, nodes: int) -> tuple[str, ...]:
    if nodes == 1:
        return ("one node has nothing to pass on; one does the same",)
    return (f"{nodes} nodes are more than {facts.layers} layers",) if facts.layers < nodes else ()


def _units(facts: ModelFacts) -> tuple[int, int]:
    """Query heads and MLP units in the smallest piece that may be cut off."""
    return facts.group_size // gcd(facts.head_dim or 1, facts.group_size), facts.group_size


def _group_reasons(facts: ModelFacts) -> list[str]:
    """Why heads or MLP are not whole quantisation groups."""
    unit, group = _units(facts)
    reasons = []
    if facts.query_heads % unit:
        reasons.append(
            f"{facts.query_heads} query heads of width {facts.head_dim} are not whole groups of {group}"
        )
    if facts.mlp_width % group:
        reasons.append(f"MLP width {facts.mlp_width} is not whole groups of {group}")
    return reasons


def _undivided(facts: ModelFacts, nodes: int) -> list[str]:
    """Which numbers do not divide by the nodes, in words that name them."""
    unit, group = _units(facts)
    counts = [(facts.query_heads, "query heads"), (facts.kv_heads, "KV heads")]
    odd = [f"{n} {word}" for n, word in counts if n % nodes]
    reasons = [f"{' and '.join(odd)} do not divide by {nodes}"] if odd else []
    if not odd and facts.query_heads // unit % nodes:
        pieces = f"{facts.query_heads // unit} pieces of {unit} query heads (whole groups of {group})"
        reasons.append(f"{pieces} do not divide by {nodes}")
    if facts.mlp_width // group % nodes:
        what = (
            f"{facts.mlp_width // group} groups of {group} MLP units"
            if group > 1
            else f"{facts.mlp_width} MLP units"
        )
        reasons.append(f"{what} do not divide by {nodes}")
    return reasons


def _even_reasons(facts: ModelFacts, nodes: int) -> tuple[str, ...]:
    if nodes == 1:
        return ("one node has nothing to share; one does the same",)
    reasons = _group_reasons(facts) + _undivided(facts, nodes)
    if facts.vocab_rows < nodes:
        reasons.append(f"{nodes} nodes are more than {facts.vocab_rows} vocabulary rows")
    return tuple(reasons)


def _uneven_reasons(facts: ModelFacts, nodes: int) -> tuple[str, ...]:
    if nodes == 1:
        return ("one node has nothing to share; one does the same",)
    unit, group = _units(facts)
    heads = "query heads" if unit == 1 else f"pieces of {unit} query heads (whole groups of {group})"
    width = "MLP units" if group == 1 else f"groups of {group} MLP units"
    counts = [
        (facts.query_heads // unit, heads),
        (facts.mlp_width // group, width),
        (facts.vocab_rows, "vocabulary rows"),
    ]
    few = [f"{nodes} nodes are more than {n} {word}" for n, word in counts if n < nodes]
    return tuple(_group_reasons(facts) + few)


def _whole(facts: ModelFacts, rank: int = 0) -> Share:
    """The share of a rank that holds everything."""
    kv = tuple(range(facts.kv_heads))
    of_query = tuple(q // facts.queries_per_kv for q in range(facts.query_heads))
    everything = (
        (0, facts.layers),
        (0, facts.query_heads),
        kv,
        of_query,
        (0, facts.mlp_width),
        (0, facts.vocab_rows),
    )
    return Share(rank, *everything, has_embedding=True, has_head=True)


def _pipeline_shares(facts: ModelFacts, nodes: int) -> tuple[Share, ...]:
    """Contiguous layers; embedding on the first rank, head on the last, one table on both where tied."""
    kv, of_query = _whole(facts).kv_heads, _whole(facts).kv_of_query
    shares = []
    for rank, layers in enumerate(near_equal(facts.layers, nodes)):
        first, last = rank == 0, rank == nodes - 1
        vocab = (0, facts.vocab_rows) if first or last else (0, 0)
        twice = ("embedding",) if facts.tied and (first or last) else ()
        held = layers, (0, facts.query_heads), kv, of_query, (0, facts.mlp_width), vocab
        shares.append(Share(rank, *held, has_embedding=first, has_head=last, repeated=twice))
    return tuple(shares)


def _tensor_shares(facts: ModelFacts, nodes: int) -> tuple[Share, ...]:
    """Query heads, MLP and vocabulary in near-equal contiguous parts; KV heads where their queries are."""
    unit, group = _units(facts)
    heads = [(a * unit, b * unit) for a, b in near_equal(facts.query_heads // unit, nodes)]
    mlps = _longer_last(facts.mlp_width // group, nodes, group)
    held = [tuple(range(a // facts.queries_per_kv, (b - 1) // facts.queries_per_kv + 1)) for a, b in heads]
    holders = [sum(head in kv for kv in held) for head in range(facts.kv_heads)]
    shares = []
    for rank, vocab in enumerate(near_equal(facts.vocab_rows, nodes)):
        kv = held[rank]
        of_query = tuple(q // facts.queries_per_kv - kv[0] for q in range(*heads[rank]))
        twice = (*(f"kv_head {head}" for head in kv if holders[head] > 1), "norms")
        cut = (0, facts.layers), heads[rank], kv, of_query, mlps[rank], vocab
        shares.append(Share(rank, *cut, has_embedding=True, has_head=True, repeated=twice))
    return tuple(shares)


def _longer_last(groups: int, nodes: int, group: int) -> list[Range]:
    """Near-equal parts, the longer ones last: the first ranks have the longer parts of the heads."""
    parts = near_equal(groups, nodes)[::-1]
    return [((groups - b) * group, (groups - a) * group) for a, b in parts]
