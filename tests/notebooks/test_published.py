"""The notebooks as they are published: in sync with their scripts, and readable on a page with no kernel."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))
MOST_BYTES = 1_000_000
WIDGET = "application/vnd.jupyter.widget-view+json"
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|Users|tmp|work|private|var)/\w")
each_notebook = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def published(script):
    """The executed notebook beside a script."""
    return nbformat.read(script.with_suffix(".ipynb"), as_version=4)


def all_outputs(script):
    """Every output of a notebook's code cells."""
    return [out for cell in published(script).cells for out in cell.get("outputs", [])]


def test_there_is_a_notebook():
    """The tests below have something to look at."""
    assert [path.stem for path in SCRIPTS] == ["01_quickstart"]


@each_notebook
def test_it_is_in_sync_with_its_script(script):
    """Cell for cell, the notebook holds what the percent script holds."""
    wanted = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    assert [(cell.cell_type, cell.source) for cell in published(script).cells] == wanted


@each_notebook
def test_it_was_executed_from_top_to_bottom(script):
    """Code cells are numbered 1, 2, 3, ... and none left an error or anything on standard error."""
    code = [cell for cell in published(script).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [
        out for out in all_outputs(script) if out.output_type == "error" or out.get("name") == "stderr"
    ] == []


@each_notebook
def test_it_reads_without_a_kernel(script):
    """Every output has plain text, every HTML with a figure its PNG, and nothing is a widget."""
    shown = [out.data for out in all_outputs(script) if out.output_type in ("display_data", "execute_result")]
    assert shown
    assert [data for data in shown if WIDGET in data or "text/plain" not in data] == []
    assert sum("image/png" in data for data in shown) >= 2
    assert "widgets" not in published(script).metadata


@each_notebook
def test_prose_stands_between_the_cells(script):
    """The first cell is a title, and no three code cells follow each other without a word."""
    kinds = [cell.cell_type for cell in published(script).cells]
    assert published(script).cells[0].source.startswith("# ")
    assert "code code code" not in " ".join(kinds)


@each_notebook
def test_it_is_small_and_names_no_machine(script):
    """Under 1 MB in all, without a path of the machine that executed it."""
    text = script.with_suffix(".ipynb").read_text()
    assert len(text.encode()) < MOST_BYTES
    short = "\n".join(line for line in text.splitlines() if len(line) < 4000)
    assert MACHINE_PATH.findall(short) == []
