"""The design of an experiment: orders are random and reproducible; numbers that give no interval are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbkit.errors import PlanError, UsageError
from tbkit.plan import plan
from tbkit.scale.design import ALL_ARMS, QUICK, SMALL, Design, chosen, order_of_arms, order_of_loads

MODEL = "smollm2-135m-instruct"
NUMBERS = st.integers(0, 10_000)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_each_arm_runs_once_a_block(load: int, block: int, seed: int) -> None:
    """Any order holds every arm once, and is the same when asked again."""
    order = order_of_arms(ALL_ARMS, load, block, seed)

    assert sorted(order) == sorted(ALL_ARMS)
    assert order == order_of_arms(ALL_ARMS, load, block, seed)


def test_orders_differ_between_blocks_loads_and_seeds() -> None:
    """Over many blocks each arm comes first about as often as any other."""
    firsts = Counter(order_of_arms(ALL_ARMS, 0, block, 0)[0] for block in range(600))

    assert set(firsts) == set(ALL_ARMS) and min(firsts.values()) > 60
    assert len({tuple(order_of_arms(ALL_ARMS, load, 0, seed)) for load in range(5) for seed in range(5)}) > 15


@given(st.integers(1, 5), NUMBERS)
def test_each_plan_has_its_loads_in_one_random_order(loads: int, seed: int) -> None:
    """Every placement so often as the design says, numbered in the order in which they run."""
    placements = chosen([plan(MODEL, n) for n in (1, 2, 4)], None)
    order = order_of_loads(placements, Design(loads=loads, seed=seed))

    assert [number for number, _ in order] == list(range(loads * len(placements)))
    assert Counter((p.kind, p.nodes) for _, p in order) == {(p.kind, p.nodes): loads for p in placements}
    assert order == order_of_loads(placements, Design(loads=loads, seed=seed))


def test_placements_are_all_that_fit_or_the_kinds_asked_for() -> None:
    """One node always stands as the base; a kind that fits nowhere is refused with its reason."""
    every = [plan(MODEL, n) for n in (1, 2)]

    assert [(p.nodes, p.kind) for p in chosen(every, None)] == [
        (1, "one"),
        (2, "tensor-uneven"),
        (2, "pipeline"),
    ]
    assert [(p.nodes, p.kind) for p in chosen(every, ["pipeline"])] == [(1, "one"), (2, "pipeline")]
    with pytest.raises(PlanError, match="do not divide by 2"):
        chosen(every, ["tensor"])
    with pytest.raises(PlanError, match="Kinds are"):
        chosen(every, ["diagonal"])


@pytest.mark.parametrize(
    "wrong", [{"blocks": 1}, {"steps": 1}, {"loads": 0}, {"warmup_blocks": 0}, {"on": ()}, {"on": (0, 1)}]
)
def test_numbers_that_give_no_interval_are_refused(wrong: dict[str, Any]) -> None:
    """UsageError names the option and the least."""
    (name,) = wrong
    with pytest.raises(UsageError, match=f"--{name}"):
        Design(**wrong).check()


def test_arms_by_plan_and_back_end() -> None:
    """All arms where the ledger is asked for, P and F elsewhere, P alone on one node and over MLX's ring."""
    assert QUICK.arms(2, "tensor-uneven") == ALL_ARMS and QUICK.has_sources(2, "tensor-uneven")
    assert QUICK.arms(4, "tensor-uneven") == QUICK.arms(2, "pipeline") == ("P", "F")
    assert QUICK.arms(1, "one") == ("P",) and QUICK.has_sources(1, "one")
    ring = Design(backend="ring")
    assert ring.arms(2, "tensor-uneven") == ("P",) and not ring.has_sources(2, "tensor-uneven")
    for design in (QUICK, SMALL, Design()):
        design.check()
