"""What the types of tbkit look like when a cell ends with them."""

from __future__ import annotations

import pytest

from tbkit.plan import Plans, plan
from tbkit.view import drawer_for, figures


class Run:
    def __init__(self, record):
        self.record = record


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


class LocalPlans(Plans):
    """A subclass is drawn as its base."""


@pytest.mark.parametrize("kind", [Plans, LocalPlans])
def test_plans_show_each_kind_with_its_split_or_its_reason(kind):
    """What does not fit is shown too, with why."""
    plans = plan("smollm2-135m-instruct", 2)
    drawing = drawer_for(kind)(plans)
    html = drawing.html("")
    assert "query heads 5 + 4" in html and "do not divide by 2" in html and "yes" in html
    assert drawing.text == str(plans)


def test_other_types_have_no_drawer():
    """None, and the object shows as its repr."""
    assert drawer_for(dict) is None
