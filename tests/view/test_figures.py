"""Figures hold the record's numbers: points, intervals, signs, labels."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from tbkit.errors import RunError
from tbkit.record.schema import Residual
from tbkit.stats import Interval
from tbkit.view import figures, waterfall


def texts(figure):
    return " ".join([figure.layout.title.text, *(a.text for a in figure.layout.annotations)])


def test_speedup_points_and_intervals_are_the_records(record):
    """Each plan's markers sit at its values, its bars reach low and high."""
    figure = figures.speedup_figure(record)
    drawn = {}
    for trace in figure.data[2:]:
        error = trace.error_y
        for x, y, up, down in zip(trace.x, trace.y, error.array, error.arrayminus, strict=True):
            drawn[round(x), trace.name] = (y, y - down, y + up)
    expected = {(s.nodes, s.plan): (s.value, s.low, s.high) for s in record.speedup if s.nodes > 1}
    assert drawn == {key: pytest.approx(value) for key, value in expected.items()}


def test_speedup_has_the_ideal_as_its_only_line(record):
    """Points are not joined; the bound y = x is."""
    ideal, *others = figures.speedup_figure(record).data
    assert ideal.mode == "lines" and tuple(ideal.x) == tuple(ideal.y) == (1, 4)
    assert {trace.mode for trace in others} == {"markers"}


def test_speedup_says_base_units_and_what_is_real(record):
    """The base case with its rate, the axes with units, the ladder's word, every value with interval."""
    figure = figures.speedup_figure(record)
    said = texts(figure)
    assert "T₁ = 108.5 ms/step [107.4, 109.6], 9.22 tok/s, measured on 1 node" in said
    assert "local: real engines" in said and "1.32× [1.30, 1.34]" in said
    assert figure.layout.xaxis.title.text == "nodes" and "(×)" in figure.layout.yaxis.title.text


def test_kinds_have_colours_of_their_own(record):
    """No two plans share a colour or a marker."""
    traces = figures.speedup_figure(record).data[1:]
    assert (
        len({trace.marker.color for trace in traces}) == len(traces) == len({t.marker.symbol for t in traces})
    )


def test_labels_that_would_overlap_are_piled():
    """Equal values get a line each, about the same middle; a far one stays where it is."""
    placed = figures.apart([1.0, 1.0, 1.01, 3.0], 0.2)
    assert min(high - low for low, high in pairwise(placed)) >= 0.2 - 1e-9
    assert sum(placed[:3]) / 3 == pytest.approx(3.01 / 3) and placed[3] == 3.0


def test_a_wrong_run_has_no_speedup_figure(wrong_record):
    """The error names the place of the fault."""
    with pytest.raises(RunError, match="layer 17, attention output"):
        figures.speedup_figure(wrong_record)


def bars(figure):
    return {y: (t.base[i], t.x[i], t.name) for t in figure.data if t.type == "bar" for i, y in enumerate(t.y)}


def test_the_waterfall_runs_from_ideal_to_measured(ledger):
    """Each bar starts where the one before it ends; the last reaches T_p; the residual ends there too."""
    drawn = bars(figures.ledger_figure(ledger))
    at = ledger.ideal_us / 1e3
    assert drawn[0][:2] == (0, pytest.approx(at))
    for i, term in enumerate(ledger.terms, start=1):
        assert drawn[i][:2] == (pytest.approx(at), pytest.approx(term.us / 1e3))
        at += term.us / 1e3
    end = len(ledger.terms) + 1
    assert drawn[end][1] == pytest.approx(at) == pytest.approx(ledger.step_us.value / 1e3)
    assert sum(drawn[end + 1][:2]) == pytest.approx(at)


def test_signs_and_doubt_have_their_own_looks(ledger):
    """A gain is no loss, and a term whose interval covers 0 is neither."""
    names = {ledger.terms[y - 1].name: name for y, (_, _, name) in bars(figures.ledger_figure(ledger)).items()
             if 1 <= y <= len(ledger.terms)}  # fmt: skip
    assert (
        names["contention"] == "loss"
        and names["fence"] == "gain"
        and names["transfer"] == "interval covers 0"
    )
    hatched = [t for t in figures.ledger_figure(ledger).data if t.type == "bar" and t.marker.pattern.shape]
    assert [t.name for t in hatched] == ["interval covers 0"]


def test_whiskers_are_the_intervals(ledger):
    """At the moving end of each bar; for the residual that is its start, mirrored."""
    figure = figures.ledger_figure(ledger)
    whisker = next(t for t in figure.data if t.name == "95 % interval")
    start = ledger.ideal_us
    for i, term in enumerate(ledger.terms, start=1):
        x, up, down = whisker.x[i], whisker.error_x.array[i], whisker.error_x.arrayminus[i]
        assert (x - down, x + up) == pytest.approx(((start + term.low) / 1e3, (start + term.high) / 1e3))
        start += term.us
    left, total = ledger.residual, ledger.step_us.value
    x, up, down = whisker.x[-1], whisker.error_x.array[-1], whisker.error_x.arrayminus[-1]
    assert (x - down, x + up) == pytest.approx(((total - left.high) / 1e3, (total - left.low) / 1e3))


def test_second_sources_stand_beside_their_bars(ledger):
    """A marker per term that has one, from the start of the bar; none for "one route only"."""
    marks = next(t for t in figures.ledger_figure(ledger).data if t.name == "second source")
    starts, at = {}, ledger.ideal_us
    for i, term in enumerate(ledger.terms, start=1):
        if term.second:
            starts[i] = (at + term.second.value) / 1e3
        at += term.us
    assert dict(zip(map(int, marks.y), marks.x, strict=True)) == pytest.approx(starts)
    assert len(marks.x) == 7


def test_every_term_is_written_with_value_interval_and_share(ledger):
    """Right of the bars; residual with its state; the scope of the intervals and the reality in the title."""
    said = texts(figures.ledger_figure(ledger, "local", "tiny"))
    assert "+11.9 [+10.7, +13.1]" in said and "−1.4 [−1.9, −0.8]" in said and "42 %" in said
    assert "not resolved" in said and "within one load" in said and "local: real engines" in said


def test_an_axis_that_does_not_start_at_0_says_so(ledger):
    """The title names the start and both long bars carry the cut mark; a large gap starts at 0."""
    figure = figures.ledger_figure(ledger)
    assert figure.layout.xaxis.range[0] == 50 and "starts at 50 ms" in figure.layout.xaxis.title.text
    assert sum("//" in (a.text or "") for a in figure.layout.annotations) == 2
    wide = msgspec.structs.replace(ledger, ideal_us=10_000.0)
    assert figures.ledger_figure(wide).layout.xaxis.range[0] == 0


def test_everything_drawn_lies_inside_the_axis(ledger):
    """Whiskers and second sources too."""
    figure = figures.ledger_figure(ledger)
    low, high = figure.layout.xaxis.range
    for trace in figure.data[-2:]:
        for x, up, down in zip(trace.x, trace.error_x.array, trace.error_x.arrayminus, strict=True):
            assert low <= x - down and x + up <= high


def test_a_whisker_wider_than_the_account_does_not_flatten_the_bars(ledger):
    """It is cut half a step beyond the bars; its figures stand beside it."""
    wide = msgspec.structs.replace(ledger, residual=Residual(9e3, -600e3, 780e3, 0.3, False, 99, ""))
    low, high = figures.ledger_figure(wide).layout.xaxis.range
    step_ms = ledger.step_us.value / 1e3
    assert -step_ms < low and high < 2 * step_ms


def test_terms_that_do_not_close_are_shown_open(ledger):
    """A sum that misses T_p gets a bar of its own instead of a silent jump."""
    broken = msgspec.structs.replace(ledger, step_us=Interval(90_000.0, 89_000.0, 91_000.0, 5))
    rows = waterfall.ledger_rows(broken)
    open_row = next(row for row in rows if row.label == "not closed")
    assert open_row.us == pytest.approx(90_000 - 82_300)
    assert "not closed" not in [row.label for row in waterfall.ledger_rows(ledger)]


def test_short_steps_are_drawn_in_microseconds(ledger):
    """The unit follows T_p."""

    def scaled(i):
        return Interval(i.value / 1e3, i.low / 1e3, i.high / 1e3, i.n)

    times = {"step_us": scaled(ledger.step_us), "single_us": scaled(ledger.single_us), "ideal_us": 54.25}
    small = msgspec.structs.replace(ledger, **times, terms=())
    assert "(µs)" in figures.ledger_figure(small).layout.xaxis.title.text
