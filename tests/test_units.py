"""Texts of numbers: units, digits that follow the interval, GB apart from GiB."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbkit import units
from tbkit.stats import Interval

MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (9.12, 8.91, 9.33, "9.1 tok/s [8.9, 9.3]"),
        (9.12, 8.98, 9.26, "9.12 tok/s [8.98, 9.26]"),
        (131.4, 92.0, 170.8, "131 tok/s [92, 171]"),
        (9.12, 9.12, 9.12, "9.12 tok/s [9.12, 9.12]"),
    ],
)
def test_rates_show_the_digits_that_the_interval_allows(value, low, high, text):
    """One digit of the half-width, two when it starts with 1; three of a value without width."""
    assert units.rate_text(Interval(value, low, high, 5)) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.5, "0.500 µs"), (27.04, "27.0 µs"), (999.4, "999 µs"), (108_500, "108 ms"), (2_300_000, "2.30 s"),
     (-1_400, f"{MINUS}1.40 ms"), (0, "0 µs")],
)  # fmt: skip
def test_times_carry_their_unit(us, text):
    """µs, ms or s by size; a real minus sign."""
    assert units.time_text(us) == text


def test_times_beside_each_other_share_unit_and_places():
    """A term of 0.08 ms beside a step of 82.3 ms stays in ms, with its sign."""
    assert units.time_interval_text(80, -50, 210, True, 82_300) == f"+0.08 ms [{MINUS}0.05, +0.21]"
    assert units.time_interval_text(1_500, -2_100, 5_100, True, 82_300) == f"+1.5 ms [{MINUS}2.1, +5.1]"


def test_gb_and_gib_are_told_apart():
    """512 GiB is 550 GB; each function says one of the two."""
    assert units.gib_text(512 * 2**30) == "512 GiB"
    assert units.gb_text(512 * 2**30) == "550 GB"
    assert units.gb_text(6.5e9) == "6.50 GB"
    assert units.bandwidth_text(6.5e9) == "6.50 GB/s"
    assert units.gib_text(12) == units.gb_text(12) == "12 B"


def test_ratios_and_shares():
    """Speed-ups carry ×, shares %."""
    assert units.speedup_text(Interval(1.318, 1.297, 1.339, 5)) == "1.32× [1.30, 1.34]"
    assert units.percent_text(0.314) == "31 %" and units.percent_text(-0.05) == f"{MINUS}5 %"


def test_what_is_not_finite_is_a_dash():
    """Neither nan nor inf reaches a reader."""
    assert units.number(float("nan")) == "–" and units.number(float("inf")) == "–"


@given(st.floats(1e-3, 1e6), st.floats(1e-6, 0.5))
def test_the_text_keeps_the_interval(value, relative):
    """Rounded bounds lie within a fifth of the half-width of the true ones, and never cross the value."""
    half = value * relative
    low, high = value - half, value + half
    text = units.interval_text(value, low, high)
    shown_low, shown_high = (float(part) for part in text.split("[")[1].rstrip("]").split(", "))
    if units.interval_places(low, high) < 6:
        assert abs(shown_low - low) <= 0.26 * half and abs(shown_high - high) <= 0.26 * half
    assert shown_low <= float(text.split(" [")[0]) <= shown_high
