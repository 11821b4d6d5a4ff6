"""What the types of tbkit look like when a cell ends with them."""

from __future__ import annotations

import pytest

from tbkit.view import drawer_for, figures


class Run:
    def __init__(self, record):
        self.record = record


class Plans:
    def rows(self):
        return [
            {"kind": "tensor-uneven", "nodes": 2, "fits": True, "split": [5, 4]},
            {"kind": "tensor", "nodes": 2},
        ]

    def __str__(self):
        return "2 plans"


class LocalPlans(Plans):
    """A subclass is drawn as its base."""


def test_a_run_shows_headline_rates_gate_and_its_figure(record):
    """The picture stands between headline and tables."""
    drawing = drawer_for(Run)(Run(record))
    html = drawing.html("<img>")
    assert html.index("1.32×") < html.index("<img>") < html.index("12.15 tok/s")
    assert "every" not in drawing.alt and "1.32×" in drawing.alt
    assert drawing.figure().layout.title.text == figures.speedup_figure(record).layout.title.text
    assert "Ledger: 2 nodes" in drawing.text


def test_a_wrong_run_has_no_figure_and_no_rate(wrong_record):
    """Only the fault and the gate."""
    drawing = drawer_for(type(wrong_record))(wrong_record)
    assert drawing.figure is None
    assert "tok/s" not in drawing.html("") and "layer 17" in drawing.html("") and "tok/s" not in drawing.text


def test_a_ledger_shows_its_waterfall_and_table(ledger):
    """Both hold the same terms."""
    drawing = drawer_for(type(ledger))(ledger)
    assert "contention" in drawing.html("") and "contention" in drawing.figure().layout.yaxis.ticktext
    assert "largest loss is contention" in drawing.alt


def test_a_gate_shows_its_checks(record):
    """Verdict and evidence."""
    drawing = drawer_for(type(record.gates[0]))(record.gates[0])
    assert "ownership" in drawing.html("") and "bound 8.8e-05" in drawing.text


@pytest.mark.parametrize("kind", [Plans, LocalPlans])
def test_plans_show_their_rows(kind):
    """Columns are the keys; what a row lacks is a dash."""
    drawing = drawer_for(kind)(kind())
    html = drawing.html("")
    assert "tensor-uneven" in html and "5, 4" in html and "yes" in html and "–" in html
    assert drawing.text == "2 plans"


def test_other_types_have_no_drawer():
    """None, and the object shows as its repr."""
    assert drawer_for(dict) is None
