"""A bar holds only where the whole interval meets it; the table says so."""

from __future__ import annotations

import json

import pytest

from tbkit.stats import Interval
from tests.bench import table
from tests.bench.__main__ import names


def pair(ratio: float, spread: float, launches: int = 7) -> tuple[list[float], list[float]]:
    """Times of us and of a peer whose paired ratios scatter evenly around ``ratio``."""
    theirs = [2.0] * launches
    return [2.0 * ratio * (1 + spread * (turn - launches // 2)) for turn in range(launches)], theirs


@pytest.mark.parametrize(
    ("ratio", "spread", "bar", "said"),
    [
        (1.2, 0.01, "<= 1.5", "yes"),
        (1.2, 0.20, "<= 1.5", "undecided"),
        (1.8, 0.01, "<= 1.5", "no"),
        (1.02, 0.001, "<= 1.0", "yes"),
        (1.04, 0.001, "<= 1.0", "no"),
        (0.01, 0.01, ">= 50", "yes"),
        (0.04, 0.01, ">= 50", "no"),
    ],
)
def test_a_ratio_is_judged_by_the_far_end_of_its_interval(ratio, spread, bar, said):
    """Bars from above use the high end, bars from below the low end, 1.0 stands for 1.03."""
    ours, theirs = pair(ratio, spread)
    row = table.against("call", "s", ours, ("peer", "1.0"), theirs, bar, "call()")

    assert table.verdict(row) == said
    assert row["holds"] == (said == "yes")


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (Interval(0.1, 0.09, 0.11, 7), "yes"),
        (Interval(0.3, 0.2, 0.4, 7), "undecided"),
        (Interval(0.5, 0.4, 0.6, 7), "no"),
        (Interval(0.304, 0.303, 0.305, 7), "no"),
    ],
)
def test_an_absolute_limit_has_no_noise_floor(measured, said):
    """A row without a peer is measured against its limit itself."""
    row = table.absolute("import", "s", measured, 0.3, "import x")

    assert (row["peer"], row["peer_value"]) == ("absolute", 0.3)
    assert table.verdict(row) == said


def test_rows_are_kept_as_the_contract_names_them(tmp_path, monkeypatch):
    """build/bench/NAME.json is a list of rows with exactly the agreed keys."""
    monkeypatch.setattr(table, "OUT", tmp_path)
    row = table.absolute("import", "s", Interval(0.1, 0.09, 0.11, 7), 0.3, "import x")

    (kept,) = json.loads(table.keep("x", [row]).read_text())

    keys = "what unit ours peer peer_version command peer_value ratio low high bar holds"
    assert list(kept) == keys.split()
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_the_table_shows_every_row_and_its_verdict():
    """One line a row under the heads, and the note on how bars are judged."""
    row = table.absolute("import", "s", Interval(0.1, 0.09, 0.11, 7), 0.3, "import x")
    lines = table.table([row, row]).splitlines()

    assert lines[0].split() == table.COLUMNS
    assert [line.split()[-1] for line in lines[1:3]] == ["yes", "yes"]
    assert "1.03" in lines[-2]


def test_the_benchmarks_are_found_by_their_names():
    """A new bench_NAME.py needs no list."""
    assert {"connect", "import"} <= set(names())
