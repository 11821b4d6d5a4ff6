"""The quickstart notebook, executed in the small form: its cells show what the text around them says."""

from __future__ import annotations

import base64
import struct

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

TERMS = (
    "replicated",
    "shape",
    "contention",
    "imbalance",
    "fence",
    "wait",
    "latency",
    "transfer",
    "instruments",
    "residual",
)
RICH = ("text/plain", "text/html", "image/png")


def outputs(notebook, part):
    """Outputs of the one code cell whose source holds ``part``."""
    (found,) = (c for c in notebook.cells if c.cell_type == "code" and part in f"\n{c.source}\n")
    return found.outputs


def text(notebook, part):
    """All plain text below that cell."""
    found = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in outputs(notebook, part)]
    return "".join(found)


def test_loading_prints_nothing(executed):
    """%load_ext is silent."""
    assert outputs(executed, "%load_ext tbkit") == []


def test_every_engine_prints_the_sum(executed):
    """Two engines that bring ones print 2.0 each, labelled."""
    lines = [line for line in text(executed, "%px").splitlines() if line.strip()]
    assert sorted(lines) == ["[stdout:0] 2.0", "[stdout:1] 2.0"]


def test_the_even_cut_is_refused_with_its_reason(executed):
    """The row of the even tensor plan says which heads do not divide."""
    (row,) = (line for line in text(executed, "tb.plan(").splitlines() if line.startswith("tensor "))
    assert "no" in row.split()
    assert "9 query heads and 3 KV heads do not divide by 2" in row


def test_the_model_answers_paris(executed):
    """The model cut over two engines knows the capital of France."""
    assert "Paris" in text(executed, ".generate(")


@pytest.mark.parametrize("part", ["\nrun\n", "tb.explain("])
def test_a_result_shows_itself_as_text_html_and_picture(executed, part):
    """What matters is saved three ways, the picture wide enough to be read."""
    (output,) = outputs(executed, part)
    assert sorted(output.data) == sorted(RICH)
    assert struct.unpack(">I", base64.b64decode(output.data["image/png"])[16:20])[0] >= 1000
    assert 'src="data:image/png;base64,' in output.data["text/html"]


def test_the_run_says_its_speed_up_base_gate_and_reality(executed):
    """The answer stands with its base case, the gate's verdict and the word for what is real."""
    said = text(executed, "\nrun\n")
    for part in ("of an ideal 2×", "T₁ = ", "Gate: OK", "local: real engines"):
        assert part in said


def test_the_speed_up_is_said_in_words(executed):
    """A sentence for each count of engines says faster, slower, or not told apart."""
    said = text(executed, "told = ")
    assert said.startswith("2 engines, tensor-uneven: ")
    assert said.rstrip().endswith("one engine")


def test_the_ledger_has_every_term(executed):
    """All terms of the account are there, and the next experiment."""
    said = text(executed, "tb.explain(")
    assert [term for term in TERMS if term not in said] == []
    assert "Next: " in said


def test_a_planted_fault_is_wrong_and_has_no_rate(executed):
    """The fault's layer is named; no rate, no time and no speed-up is shown."""
    said = text(executed, "plant=")
    assert said.startswith("WRONG")
    assert "layer 12" in said
    assert "No rate is given" in said
    assert "tok/s" not in said
    assert "image/png" not in outputs(executed, "plant=")[-1].data
