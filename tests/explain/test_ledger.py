"""The ledger of synthetic runs: each planted cause comes back as its term, and the account closes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbkit.explain import explain
from tbkit.explain.blocks import Blocks
from tbkit.explain.ledger import ledgers
from tbkit.record import Ledger, Record, Sample
from tbkit.stats import mean_interval

UNEVEN = "tensor-uneven"
TIMES = st.floats(1.0, 1e5)
PAIRS = st.tuples(TIMES, TIMES)


def record(**more: Any) -> Record:
    facts = {"cluster": {"cores": 2}, "factors": {}} | more
    return Record("x", "decode", "done", "local", "2026-09-11T10:15:00Z", "tiny", **facts)


def ledger_of(samples: Any, layers: int = 2, **more: Any) -> Ledger:
    (found,) = ledgers(record(**more), list(samples), layers)
    return found


def by_name(ledger: Ledger) -> dict[str, float]:
    return {term.name: term.us for term in ledger.terms}


def test_every_planted_cause_is_its_term(planted: Any) -> None:
    """Known answer of a tensor plan, negative terms too; the sum is T_p - T_1/p."""
    ledger = ledger_of(planted.arms() + planted.base())

    assert by_name(ledger) == pytest.approx(planted.TERMS)
    assert (ledger.step_us.value, ledger.single_us.value, ledger.ideal_us) == (80, 100, 50)
    assert sum(by_name(ledger).values()) == pytest.approx(30)
    assert [t.share for t in ledger.terms] == pytest.approx([us / 30 for us in planted.TERMS.values()])
    assert all(t.low == pytest.approx(t.us) and t.high == pytest.approx(t.us) for t in ledger.terms)


def test_a_pipelines_bubble_is_what_the_stages_sum_up_to(planted: Any) -> None:
    """T_id is the sum of the stages; bubble = ΣC - max C; its second fence, latency and transfer do not exist."""
    ledger = ledger_of(planted.arms("pipeline", L=(130, 129), F=(133, 131), P=(132, 130)) + planted.base())
    found = by_name(ledger)

    assert "wait" not in found and found["bubble"] == pytest.approx(64 + 62 - 64)
    assert found["latency"] == pytest.approx(130 - 126) and found["transfer"] == pytest.approx(3)
    assert sum(found.values()) == pytest.approx(132 - 50)
    assert [t.second_source for t in ledger.terms] == ["one route only"] * len(ledger.terms)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(*[PAIRS] * 7), min_size=2, max_size=5), st.lists(TIMES, min_size=2, max_size=5))
def test_the_account_closes_whatever_was_measured(planted: Any, drawn: Any, single: Any) -> None:
    """The sum of all terms, "instruments" with them, is T_p - T_1/p for any times of any block."""
    rows = []
    for block, (*arms, parts) in enumerate(drawn):
        for name, us in zip("ANCLFP", arms, strict=True):
            rows += planted.steps(UNEVEN, name, block, us, [[parts[0]], [parts[1]]] if name == "C" else None)
    for block, us in enumerate(single):
        rows += planted.steps("one", "P", block, [us])
    ledger = ledger_of(rows)

    lost = ledger.step_us.value - ledger.ideal_us
    assert sum(by_name(ledger).values()) == pytest.approx(lost, abs=1e-6 * max(1.0, ledger.step_us.value))


def test_a_whole_blocks_disturbance_stays_out_of_the_paired_terms(planted: Any) -> None:
    """What slows all arms of a block alike widens shape and T_p alone: the others are differences in the block."""
    shift = (-8, 3, 7, -2)
    ledger = ledger_of(planted.arms(shift=shift) + planted.base(shift=(5, -5, 2, -2)))

    assert by_name(ledger) == pytest.approx(planted.TERMS)
    widths = {t.name: t.high - t.low for t in ledger.terms}
    # T_id is replayed from segments, which this disturbance does not touch: it is in wait and out of latency
    assert {name for name, width in widths.items() if width > 1e-9} == {"shape", "wait", "latency"}
    assert widths["shape"] > mean_interval([float(x) for x in shift]).high


def test_perfect_second_sources_leave_no_residual(planted: Any) -> None:
    """Where the pieces and links say what the arms say and P is F, the residual is zero and resolved."""
    rows = planted.arms(P=planted.ARMS["F"]) + planted.base() + planted.sources()
    ledger = ledger_of(rows)

    for term in ledger.terms:
        if term.name != "instruments":
            assert term.second is not None and term.second.value == pytest.approx(term.us), term.name
    assert by_name(ledger)["instruments"] == 0
    assert ledger.residual.us == pytest.approx(0, abs=1e-9) and ledger.residual.resolved
    assert ledger.residual.blocks_needed == 0


def test_what_the_sources_do_not_explain_is_the_residual(planted: Any) -> None:
    """9 µs that P takes and no source knows come back as 9 µs, resolved; instruments count in it."""
    rows = planted.arms(P=(91, 90)) + planted.base() + planted.sources()
    residual = ledger_of(rows).residual

    assert residual.us == pytest.approx(9) and residual.share == pytest.approx(9 / 41) and residual.resolved


def test_a_residual_too_wide_says_how_many_blocks_it_takes(planted: Any) -> None:
    """Scatter of P between blocks: not resolved, and the blocks named would give the width asked for."""
    rows = planted.base() + planted.sources()
    plain = [82 + x for x in (-20.0, 14.0, -9.0, 15.5)]
    rows += [s for s in planted.arms() if s.intervention != "P"]
    for block, us in enumerate(plain):
        rows += planted.steps(UNEVEN, "P", block, (us, us - 1))
    residual = ledger_of(rows).residual

    assert not residual.resolved and residual.low < 0 < residual.high
    assert residual.blocks_needed > 4
    half, lost = (residual.high - residual.low) / 2, sum(plain) / 4 - 50
    assert half > max(abs(residual.us), 0.05 * lost)
    assert half * (4 / residual.blocks_needed) ** 0.5 < 2 * max(abs(residual.us), 0.05 * lost)


def test_contention_names_its_cause(planted: Any) -> None:
    """More ranks than cores is said; enough cores are not called oversubscribed."""
    rows = planted.arms() + planted.base()
    words = {
        cores: next(
            t.words for t in ledger_of(rows, cluster={"cores": cores}).terms if t.name == "contention"
        )
        for cores in (1, 2)
    }

    assert "oversubscribed: 2 ranks on 1 cores" in words[1] and "oversubscribed" not in words[2]


def test_without_all_arms_or_without_the_base_there_is_no_ledger(planted: Any) -> None:
    """P and F alone, one block alone, or no single node: nothing is made up."""
    some = [s for s in planted.arms() if s.intervention in "PF"]

    assert ledgers(record(), list(some + planted.base()), 2) == []
    assert ledgers(record(), list(planted.arms(blocks=1) + planted.base()), 2) == []
    assert ledgers(record(), list(planted.arms()), 2) == []


def test_the_scope_of_the_intervals_is_said(planted: Any) -> None:
    """Blocks of one load, or of several."""
    assert ledger_of(planted.arms() + planted.base()).interval_scope == "within one load"
    import msgspec

    second = [msgspec.structs.replace(s, load=2) for s in planted.arms()]
    assert ledger_of(planted.arms() + second + planted.base()).interval_scope == "between loads"


def test_the_slowest_rank_is_chosen_on_odd_steps_and_measured_on_even_ones() -> None:
    """A rank that looks slow by chance is measured afresh; warm-up rows do not count."""
    rows = [Sample(0, 2, UNEVEN, "N", 0, False, i, 0, us) for i, us in enumerate((90.0, 10.0, 90.0, 12.0))]
    rows += [Sample(0, 2, UNEVEN, "N", 0, False, i, 1, 50.0) for i in range(4)]
    rows += [Sample(0, 2, UNEVEN, "N", 1, True, 0, 0, 1.0)]
    blocks = Blocks(rows, 2, UNEVEN)

    assert blocks.slowest("N") == [11.0] and blocks.keys == [(0, 0)]
    assert blocks.together("N") == [51.0]


def test_from_folder_to_ledger(planted: Any, make: Any) -> None:
    """The same known answer through a run folder's files; the run's words name its largest term."""
    path = make(planted.arms() + planted.base() + planted.sources())
    why = explain(path)

    assert by_name(why.ledgers[0]) == pytest.approx(planted.TERMS)
    assert "transfer takes 0.0 ms" in why.words and "tensor-uneven on 2" in why.words
    told = why.to_json()
    assert set(told) == {"ledgers", "ruled_out", "causes", "laws", "words", "next_experiment"}
    assert {t["name"]: t["us"] for t in told["ledgers"][0]["terms"]} == pytest.approx(planted.TERMS)
    assert {"name", "us", "low", "high", "share", "routes"} == set(told["ledgers"][0]["terms"][0])
