"""The check of ownership: every placement that fits passes, every single fault is caught and named."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tbkit.errors import PlanError
from tbkit.model import ModelFacts, find
from tbkit.plan import Placement, Share, check, plan, problems
from tbkit.plan.ownership import owners_of

FACTS = find("smollm2-135m-instruct").facts


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """Models whose heads and groups are any that make sense."""
    kv, group = draw(st.integers(1, 8)), draw(st.sampled_from([1, 32, 64]))
    return msgspec.structs.replace(
        FACTS,
        layers=draw(st.integers(1, 40)),
        query_heads=kv * draw(st.integers(1, 6)),
        kv_heads=kv,
        head_dim=draw(st.sampled_from([8, 32, 64, 80])),
        mlp_width=group * draw(st.integers(1, 60)),
        vocab_rows=draw(st.integers(1, 200)),
        tied=draw(st.booleans()),
        group_size=group,
    )


def with_share(placement: Placement, at: int, **changes: object) -> Placement:
    """The placement with one rank's share changed."""
    shares = list(placement.shares)
    shares[at] = msgspec.structs.replace(shares[at], **changes)
    return msgspec.structs.replace(placement, shares=tuple(shares))


def moved(part: tuple[int, int], total: int, step: int = 1) -> Iterator[tuple[int, int]]:
    """The range with one end moved by a step, inwards or outwards."""
    start, stop = part
    yield from ((a, b) for a, b in ((start + step, stop), (start, stop - step)) if a <= b)
    yield from ((a, b) for a, b in ((start - step, stop), (start, stop + step)) if a >= 0 and b <= total)


def faults(facts: ModelFacts, share: Share) -> Iterator[dict[str, object]]:
    """Every single change of a share that makes the placement wrong."""
    yield from ({"layers": part} for part in moved(share.layers, facts.layers))
    yield from ({"query_heads": part} for part in moved(share.query_heads, facts.query_heads))
    yield from ({"mlp": part} for part in moved(share.mlp, facts.mlp_width, facts.group_size))
    yield from ({"vocab": part} for part in moved(share.vocab, facts.vocab_rows))
    yield {"vocab": (-1, share.vocab[1])}
    yield {"has_embedding": not share.has_embedding}
    yield {"has_head": not share.has_head}
    yield {"kv_heads": share.kv_heads[1:]}
    yield {"kv_heads": (*share.kv_heads, facts.kv_heads)}
    yield {"kv_heads": (*share.kv_heads, share.kv_heads[0])}
    yield {"kv_of_query": share.kv_of_query[1:]}
    yield {"kv_of_query": (share.kv_of_query[0] + 1, *share.kv_of_query[1:])}
    yield from ({"repeated": tuple(n for n in share.repeated if n != name)} for name in share.repeated)
    yield {"repeated": (*share.repeated, "kv_head 99")}
    yield {"rank": share.rank + 1}


@settings(max_examples=200, deadline=None)
@given(facts=models(), nodes=st.integers(1, 8))
def test_every_placement_that_fits_is_owned_right(facts: ModelFacts, nodes: int) -> None:
    """Over heads, groups, layers, vocabularies and nodes: what fits passes, what does not has a reason."""
    for placement in plan(facts, nodes):
        if placement.fits:
            assert problems(facts, placement) == () and len(placement.shares) == nodes and placement.split
        else:
            assert placement.reasons and not placement.shares


@settings(max_examples=60, deadline=None)
@given(facts=models(), nodes=st.integers(1, 8), data=st.data())
def test_every_single_fault_is_caught(facts: ModelFacts, nodes: int, data: st.DataObject) -> None:
    """A layer, head, group or row dropped or doubled, a map or a name spoilt: it is never silent."""
    fitting = [p for p in plan(facts, nodes) if p.fits]
    assume(fitting)
    for placement in fitting:
        rank = data.draw(st.integers(0, nodes - 1))
        for fault in faults(facts, placement.shares[rank]):
            assert problems(facts, with_share(placement, rank, **fault)), (placement.kind, rank, fault)


@pytest.mark.parametrize(
    ("kind", "rank", "fault", "words"),
    [
        ("pipeline", 0, {"layers": (0, 7)}, "layer 7 has no owner"),
        ("pipeline", 1, {"layers": (9, 16)}, "layer 8 has no owner"),
        ("pipeline", 1, {"layers": (7, 16)}, "layer 7 owned by ranks 0 and 1"),
        ("pipeline", 3, {"layers": (23, 31)}, "rank 3 claims layers from 23 to before 31 of 30"),
        ("pipeline", 2, {"mlp": (0, 1504)}, "MLP units 1504..1535 of layers 16..22 have no owner"),
        ("pipeline", 3, {"vocab": (0, 0)}, "vocabulary rows 0..49151 of the head have no owner"),
        ("tensor-uneven", 0, {"query_heads": (0, 4)}, "query head 3 of layers 0..29 owned by ranks 0 and 1"),
        ("tensor-uneven", 0, {"query_heads": (0, 2)}, "query head 2 of layers 0..29 has no owner"),
        ("tensor-uneven", 0, {"layers": (0, 29)}, "query heads 0..2 of layer 29 have no owner"),
        (
            "tensor-uneven",
            3,
            {"mlp": (1120, 1536)},
            "MLP units 1120..1151 of layers 0..29 owned by ranks 2 and 3",
        ),
        ("tensor-uneven", 1, {"vocab": (12289, 24576)}, "vocabulary row 12288 of the embedding has no owner"),
        ("tensor-uneven", 2, {"kv_heads": (1,)}, "rank 2 lacks KV head 2, which its query heads need"),
        (
            "tensor-uneven",
            0,
            {"kv_heads": (0, 1)},
            "rank 0 holds KV head 1, which none of its query heads needs",
        ),
        ("tensor-uneven", 2, {"kv_of_query": (1, 0)}, "rank 2 gives query head 5 KV head 2, it needs 1"),
        ("tensor-uneven", 2, {"repeated": ("kv_head 1", "norms")}, "rank 2 holds kv_head 2 as rank 3 do"),
        ("tensor-uneven", 0, {"repeated": ("kv_head 0", "norms")}, "rank 0 names kv_head 0 as repeated"),
        ("tensor-uneven", 0, {"repeated": ()}, "rank 0 holds norms as ranks 1, 2 and 3 do"),
    ],
)
def test_faults_are_named(kind: str, rank: int, fault: dict[str, object], words: str) -> None:
    """The error says what is missing or doubled, and on which ranks."""
    with pytest.raises(PlanError) as caught:
        check(FACTS, with_share(plan(FACTS, 4)[kind], rank, **fault))
    assert words in "; ".join(caught.value.facts["problems"])


def test_a_lost_rank_is_named() -> None:
    """A placement without one of its shares is refused before anything else."""
    placement = plan(FACTS, 4)["pipeline"]
    lost = msgspec.structs.replace(placement, shares=placement.shares[:2] + placement.shares[3:])
    with pytest.raises(PlanError, match=r"shares are of ranks \[0, 1, 3\], not 0 to 3"):
        check(FACTS, lost)


def test_many_problems_are_counted() -> None:
    """The message shows the first ones and counts the rest; the error's facts hold all."""
    bare = with_share(
        plan(FACTS, 4)["tensor-uneven"], 0, kv_of_query=(7, 7, 7), repeated=("a", "b", "c", "d")
    )
    with pytest.raises(PlanError, match=r"and \d+ more") as caught:
        check(FACTS, bare)
    assert len(caught.value.facts["problems"]) > 6


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda p: (min(p), max(p))), max_size=5
    )
)
def test_stretches_agree_with_counting(parts: list[tuple[int, int]]) -> None:
    """By ranges or one by one, the owners of each place are the same."""
    stretches = owners_of(enumerate(parts), 12)
    by_range = [owners for (a, b), owners in stretches for _ in range(a, b)]
    assert by_range == [tuple(r for r, (a, b) in enumerate(parts) if a <= n < b) for n in range(12)]
