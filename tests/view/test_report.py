"""The one-file report, the terminal text, the summary: complete, closed to the network, silent on WRONG."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from tbkit.errors import InputError
from tbkit.view import report, tables, text, words

RATE = re.compile(r"tok/s|\d\s*(?:ms|µs|×)(?![\w-])|speed-up of", re.I)


def visible(html):
    """The page without scripts, styles and tags."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.S))


def test_the_report_is_one_file_that_asks_no_network(record, tmp_path):
    """One plotly.js, two figures, no reference to any address, and a policy that forbids them."""
    path = report.write_report(record, tmp_path / "report.html")
    page = path.read_text()
    assert page.count("Plotly.newPlot(") == 2 and page.count("plotly.js v") == 1
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:)", page)
    assert "default-src 'none'" in page
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_report_says_what_the_run_found(record):
    """Headline, every speed-up, every term, gate per plan, every factor, method, versions, reality."""
    said = visible(report.report_html(record, {"versions": {"mlx": "0.32.4"}, "cpu_model": "Test CPU"}))
    assert "2 nodes, tensor-uneven: 1.32× [1.30, 1.34] of an ideal 2×; the largest loss is contention" in said
    assert all(term.name in said and term.words.split("'")[0] in said for term in record.ledgers[0].terms)
    assert "4 nodes, pipeline: OK" in said and "0.32.4" in said and "Test CPU" in said
    assert all(name in said for name in record.factors) and "split steps" in said
    assert said.count("local: real engines, compute and channels on one machine") >= 4


def test_warnings_are_said(record):
    """Not stable, one load, oversubscribed, and the run's own notes."""
    said = "\n".join(words.warnings(record))
    assert "not stable: 4 nodes, tensor-uneven: " in said and "6.1 %" in said
    assert "within one load" in said and "oversubscribed: 4 ranks of 1 thread(s) on 2 cores" in said
    assert "synthetic numbers" in said and "oversubscribed: 2" not in said


@pytest.mark.parametrize("face", ["html", "text", "summary"])
def test_a_wrong_run_shows_the_fault_and_no_rate(wrong_record, face):
    """No face of a WRONG run holds a rate, a time or a speed-up; each names the place of the fault."""
    faces = {
        "html": lambda: visible(report.report_html(wrong_record)),
        "text": lambda: text.record_text(wrong_record),
        "summary": lambda: json.dumps(text.summary(wrong_record), ensure_ascii=False),
    }
    said = faces[face]()
    assert "layer 17, attention output" in said and "WRONG" in said
    assert not RATE.search(said)
    for number in ("9.22", "12.15", "1.318", "82.3", "108.5"):
        assert number not in said


def test_one_wrong_gate_makes_the_run_wrong(record, wrong_record):
    """Whatever the state says."""
    assert words.is_wrong(msgspec.structs.replace(wrong_record, state="done"))
    assert not words.is_wrong(record)


def test_what_a_record_says_is_escaped(record):
    """Names and words from outside are text, never mark-up."""
    page = report.report_html(msgspec.structs.replace(record, notes=("<img src=x onerror=alert(1)>",)))
    assert "<img src=x" not in page and "&lt;img src=x" in page


def test_a_report_that_cannot_be_written_is_one_line(record, tmp_path):
    """The folder is missing: InputError with the path, and no temporary file."""
    with pytest.raises(InputError, match="cannot be written"):
        report.write_report(record, tmp_path / "absent" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_text_fits_a_terminal(record, wrong_record):
    """At most 100 columns, whatever the words are, and narrower when asked."""
    long = msgspec.structs.replace(record, notes=("word " * 60,))
    for shown in (record, long, wrong_record):
        assert max(map(len, text.record_text(shown).splitlines())) <= 100


def test_the_text_has_2_nodes_first(record):
    """Then 1, then 4; the fastest plan of a count first."""
    rows = [(row[0], row[1]) for row in tables.rates_table(record).rows]
    assert rows == [
        ("2", "tensor-uneven"),
        ("2", "pipeline"),
        ("1", "one"),
        ("4", "pipeline"),
        ("4", "tensor-uneven"),
    ]


def test_the_text_holds_the_account(record):
    """Every term with interval, share and second source; the residual with what it would take."""
    said = text.record_text(record)
    assert "+11.9 ms [+10.7, +13.1]" in said and "one route only" in said
    assert "31 blocks" in said and "T2 − T1/2" in said and "+28.1 ms" in said


def test_only_production_steps_have_a_rate(record):
    """An intervention's step time is shown, its rate is not."""
    arms = {(row[2], row[1], row[0]): row[4] for row in tables.arms_table(record).rows}
    assert arms["F", "tensor-uneven", "2"] == "–" and "tok/s" in arms["P", "tensor-uneven", "2"]


def test_the_summary_has_the_keys_of_the_contract(record):
    """As in the design's table of JSON keys; arms of intervention P alone; plain JSON."""
    found = json.loads(json.dumps(text.summary(record)))
    assert set(found) == {"cluster", "model", "arms", "speedup", "ledger", "gate"}
    assert all(set(arm) == {"nodes", "plan", "decode_tok_s", "low", "high"} for arm in found["arms"])
    assert len(found["arms"]) == 5 and len(found["speedup"]) == 4
    assert all(set(s) == {"nodes", "plan", "value", "low", "high"} for s in found["speedup"])
    assert set(found["ledger"]) == {"nodes", "plan", "terms", "residual"}
    assert all(set(t) == {"name", "us", "low", "high", "share"} for t in found["ledger"]["terms"])
    assert found["gate"]["verdict"] == "OK" and len(found["gate"]["checks"]) == 12


def test_a_record_with_little_in_it_still_reports(record):
    """One node, no ledger, no gate: no figure, no error."""
    bare = msgspec.structs.replace(record, arms=record.arms[:1], speedup=(), gates=(), ledgers=(), notes=())
    assert "no speed-up was measured" in visible(report.report_html(bare))
    assert "9.22 tok/s" in text.record_text(bare)
    assert text.summary(bare)["ledger"] is None and text.summary(bare)["gate"]["verdict"] is None


def test_what_was_not_checked_or_not_finished_is_said(record):
    """Rates without a gate, and a run that failed, carry a warning; one node is its own reference."""
    loose = msgspec.structs.replace(record, state="failed", gates=record.gates[:1])
    said = "\n".join(words.warnings(loose))
    assert "state failed" in said and "not checked: the answers of 2 nodes, pipeline" in said
    assert "2 nodes, tensor-uneven were" not in said and "of 1 node" not in said
    assert "not checked" not in "\n".join(words.warnings(record))
