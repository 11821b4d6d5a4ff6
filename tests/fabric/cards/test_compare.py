"""A cable that is not like the others is named with its two ends; cables that are alike are left in peace."""

from __future__ import annotations

import msgspec
import pytest

from tbkit.fabric.cards import compare, odd_ones
from tests.fabric.cards.synthetic import LATE, TB4, TB5, card, mesh

SLOW_ENDS = ("mac2:rdma_en2", "mac3:rdma_en2")


def test_a_thunderbolt_4_cable_among_5_is_named_with_its_ends_ratio_and_interval():
    """Both directions, bandwidth alone, and no other cable."""
    found = odd_ones(mesh({("mac2", "mac3"): TB4}))
    assert {(f.ends, f.figure) for f in found} == {(SLOW_ENDS, "bandwidth")}
    assert {f.source for f in found} == {"mac2", "mac3"}
    for finding in found:
        assert finding.ratio.low < 3.0 / 6.5 * 1.02 and finding.ratio.high > 3.0 / 6.5 * 0.98
        assert finding.ratio.low < finding.ratio.value < finding.ratio.high < 0.75
        assert "mac2:rdma_en2 to mac3:rdma_en2" in finding.words and "Thunderbolt 4" in finding.words
        assert "0.46" in finding.words and "[" in finding.words


def test_a_late_cable_is_named_for_its_latency_alone():
    """31 µs among 9 µs, at the full rate; nothing is said of Thunderbolt 4."""
    found = odd_ones(mesh({("mac1", "mac4"): LATE}))
    assert {f.figure for f in found} == {"latency"} and len(found) == 2
    assert all(f.ends == ("mac1:rdma_en2", "mac4:rdma_en2") and f.ratio.low > 3.0 for f in found)
    assert not any("Thunderbolt" in f.words for f in found)


def test_one_direction_alone_can_be_slow():
    """The slow way is named, the other not."""
    cards = mesh({})
    cards[3] = card("mac2", "mac3", TB5, back=TB4)
    (found,) = odd_ones(cards)
    assert found.source == "mac3" and found.figure == "bandwidth"


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_cables_that_are_alike_are_not_told_apart(noise):
    """However wide the scatter, over many meshes."""
    assert [odd_ones(mesh({}, seed=seed, noise=noise)) for seed in range(5)] == [()] * 5


def test_all_slow_is_all_alike():
    """A mesh of nothing but Thunderbolt 4 has no odd one."""
    pairs = {(a, b): TB4 for a in ("mac1", "mac2", "mac3") for b in ("mac2", "mac3", "mac4")}
    assert odd_ones(mesh(pairs)) == ()


def test_two_slow_cables_do_not_hide_each_other():
    """Two of six: both are named, the four others not."""
    found = odd_ones(mesh({("mac1", "mac2"): TB4, ("mac3", "mac4"): TB4}))
    assert {f.ends[0][:4] + f.ends[1][:4] for f in found} == {"mac1mac2", "mac3mac4"}


def test_with_nothing_to_compare_nothing_is_said():
    """One cable; others of another carrier or reality; the card itself twice; nothing measured."""
    slow = card("mac1", "mac2", TB4)
    assert compare(slow, []) == () and compare(slow, [slow, slow]) == ()
    assert compare(slow, [card("mac1", "mac3", carrier="tcp")]) == ()
    assert compare(slow, [card("mac1", "mac3", reality="rack")]) == ()


def test_figures_of_another_size_are_not_compared():
    """A stream of 4 MiB is not held against one of 64 B."""
    other = card("mac1", "mac3")
    short = [msgspec.structs.replace(way, bandwidth=way.bandwidth[:1]) for way in other.directions]
    other = msgspec.structs.replace(other, there=short[0], back=short[1])
    assert compare(card("mac1", "mac2", TB4), [other]) == ()


def test_a_card_of_yesterday_serves_too():
    """It is a function of cards, wherever they come from: one slow cable against one good one."""
    found = compare(card("mac1", "mac2", TB4), [card("lab1", "lab2", id="another")])
    assert {f.figure for f in found} == {"bandwidth"}
