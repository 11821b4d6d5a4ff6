"""The quickstart notebook in JupyterLab: a person who opens it and runs all cells sees what it promises."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

LEAST_WIDTH, LEAST_HEIGHT = 500, 200  # CSS pixels of a figure that can be read


def test_every_cell_runs_in_order_without_an_error(visit):
    """All code cells carry their number, and none shows an error or a traceback."""
    assert [cell.prompt for cell in visit.cells] == [f"[{n}]:" for n in range(1, len(visit.cells) + 1)]
    assert [cell.error for cell in visit.cells if cell.error] == []
    assert [cell.stderr for cell in visit.cells if "Traceback" in cell.stderr] == []
    assert visit.page_errors == []


def test_the_figures_are_on_the_page(visit):
    """The speed-up and the waterfall are drawn, large enough to be read, and not stretched from few pixels."""
    for source in ("\nrun", "why = "):
        found = [cell for cell in visit.cells if source in f"\n{cell.source}" and cell.pictures]
        assert found, f"no picture below the cell with {source!r}"
        for picture in found[0].pictures:
            assert picture["width"] >= LEAST_WIDTH
            assert picture["height"] >= LEAST_HEIGHT
            assert picture["pixels"] >= picture["width"]


def test_the_tables_are_on_the_page(visit):
    """Nodes, plans with the reason of the refused one, rates with the gate, and the ledger are tables."""
    cluster, plans = visit.cell("%tbcluster connect"), visit.cell("tb.plan(")
    assert "local0" in cluster.tables[0]
    assert "local1" in cluster.tables[0]
    assert "do not divide" in plans.tables[0]
    assert "tensor-uneven" in plans.tables[0]
    assert "residual" in visit.cell("tb.explain(").tables[0]


def test_the_model_answers(visit):
    """The generated text stands below the cell that asked."""
    assert "Paris" in visit.cell(".generate(").text


def test_the_fault_is_named_and_the_last_cell_is_done(visit):
    """The planted fault shows WRONG with its layer, and the cluster is gone in the end."""
    assert "WRONG" in visit.cell("plant=").text
    assert "layer 12" in visit.cell("plant=").text
    assert "disconnect" in visit.cells[-1].source
    assert visit.cells[-1].text.strip() == ""
