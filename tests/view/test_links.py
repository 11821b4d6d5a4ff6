"""Cards and collectives as tables and as the one figure: the field's columns, every digit that counts, units."""

from __future__ import annotations

import msgspec
import pytest

from tbkit.fabric.cards import Cards, Collective, Collectives, Crossing, Cut, odd_ones
from tbkit.stats import Interval
from tbkit.view import drawer_for, links
from tests.fabric.cards.synthetic import TB4, card, mesh

SHARED = {
    "id": "20261201-120000-x-0abc", "created": "2026-12-01T12:00:00+00:00", "reality": "local",
    "carrier": "tcp", "nodes": ("a", "b", "c", "d"), "factors": {},
}  # fmt: skip


def cards(made, what="cards"):
    made = tuple(made)
    return Cards(what=what, cards=made, findings=odd_ones(made), **SHARED)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.11, "0.110"),
        (0.1137, "0.114"),
        (0.0123, "0.0123"),
        (9.1234, "9.12"),
        (1234.567, "1234.57"),
        (0.0, "0.00"),
    ],
)
def test_a_tenth_of_a_microsecond_keeps_its_digits(value, text):
    """Three digits, two places: 0.11 is not 0.1."""
    assert links.digits(value) == text


def test_lat_and_bw_are_perftests_tables():
    """The header of perftest word by word, sizes rising, one line a size."""
    tables = links.card_tables(card("a", "b"))
    assert [len(table.rows) for table in tables] == [20, 9, 20, 9, 9]
    assert " ".join(tables[0].columns[:9]) == (
        "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
        "99% percentile[usec] 99.9% percentile[usec]"
    )
    assert " ".join(tables[1].columns[:5]) == (
        "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]"
    )
    assert "timed at b" in tables[1].title and "timed at a" in tables[3].title
    assert [int(row[0]) for row in tables[0].rows] == [2**k for k in range(3, 23)]


def test_the_summary_has_a_row_a_direction():
    """α, β, breaks, jitter, stream and message rate, with intervals and what is real."""
    table = links.summary_table(mesh({}), "local")
    assert len(table.rows) == 12
    text = table.text(links.WIDTH)
    for word in (
        "α",
        "β",
        "breaks",
        "p99.9",
        "stream",
        "messages",
        "both ways",
        "local: real engines",
        "GB/s [",
    ):
        assert word in text


def test_an_odd_cable_stands_below_the_table():
    """In text and in HTML, with its two ends; alike, nothing does."""
    odd = cards(mesh({("mac2", "mac3"): TB4}))
    drawing = drawer_for(Cards)(odd)
    for shown in (drawing.text, drawing.html("<img>")):
        assert "cable mac2:rdma_en2 to mac3:rdma_en2" in shown and "Thunderbolt 4" in shown
    assert "<img>" in drawing.html("<img>")
    assert "!" not in drawer_for(Cards)(cards(mesh({}))).text


def collectives(wrong=0):
    time = Interval(100.0, 90.0, 110.0, 5)
    row = Collective(1 << 20, 1 << 18, "float", "sum", 100, time, wrong)
    return Collectives(sizes=(row,), cable_bytes_per_s=Interval(6e9, 5.9e9, 6.1e9, 5), **SHARED)


def test_all_reduce_is_nccl_tests_table_with_the_limits_beside_it():
    """algbw = size / time, busbw × 1.5 on four ranks, one cable, three cables."""
    found = collectives()
    assert list(found.rows()[0])[:8] == ["size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"]
    text = drawer_for(Collectives)(found).text
    for word in ("10.49", "15.73", "6.00", "18.00", "busbw(GB/s)", "#wrong", "mesh limit"):
        assert word in text


def test_a_wrong_sum_is_shouted_and_is_no_good_answer():
    """The count of wrong elements."""
    assert collectives().good and not collectives(3).good
    assert "WRONG: 3 elements" in drawer_for(Collectives)(collectives(3)).text


@pytest.mark.parametrize(("device", "said"), [("cpu", "graph cut on the CPU"), ("gpu", "GPU↔CPU fence")])
def test_crossing_says_what_it_is(device, said):
    """On the CPU a cut, and what only a Mac can show."""
    some = Interval(2.0, 1.5, 2.5, 5)
    found = Crossing(device=device, cuts=(Cut("a", 64, 32, some, some, some),), **SHARED)
    text = drawer_for(Crossing)(found).text
    assert said in text and ("only a Mac can show" in text) == (device == "cpu")
    assert "2.00 µs [1.50, 2.50]" in text


def test_the_figure_holds_the_cards_numbers():
    """Every point with its interval; log axes with units; the other panel goes where nothing was measured."""
    made = card("a", "b")
    figure = links.links_figure([made], "local")
    assert figure.layout.xaxis.type == figure.layout.yaxis2.type == "log"
    assert "(µs)" in figure.layout.yaxis.title.text and "GB/s" in figure.layout.yaxis2.title.text
    points = figure.data[0]
    assert list(points.y) == [row.block_us.value for row in made.there.latency]
    lows = [y - down for y, down in zip(points.y, points.error_y.arrayminus, strict=True)]
    assert lows == pytest.approx([row.block_us.low for row in made.there.latency])
    streams = [trace for trace in figure.data if trace.xaxis == "x2"]
    assert list(streams[1].y) == [row.block_bytes_per_s.value / 1e9 for row in made.back.bandwidth]
    assert (
        len({trace.name for trace in figure.data}) == 3 and "local: real engines" in figure.layout.title.text
    )
    alone = msgspec.structs.replace(
        made, both_ways=(), there=msgspec.structs.replace(made.there, bandwidth=()),
        back=msgspec.structs.replace(made.back, bandwidth=()),
    )  # fmt: skip
    half = links.links_figure([alone], "local")
    assert "yaxis2" not in half.layout and half.layout.xaxis.domain == (0.0, 0.97)


def test_a_card_and_a_finding_show_themselves():
    """A single card with its tables, a finding as its words."""
    odd = cards(mesh({("mac2", "mac3"): TB4}))
    assert "t_typical[usec]" in drawer_for(type(odd.cards[0]))(odd.cards[0]).text
    assert drawer_for(type(odd.findings[0]))(odd.findings[0]).text == odd.findings[0].words
