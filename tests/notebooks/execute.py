"""Execute a notebook's percent script and write the notebook with its outputs.

The published one, in the whole form, on a machine that does nothing else::

    python tests/notebooks/execute.py notebooks/01_quickstart.py

``--out FILE`` writes elsewhere, and ``TBKIT_SMALL=1`` in the environment makes the small form. The kernel runs in
``build/notebooks``, where its runs stay. Cells get the same ids every time and no times of execution, so that a
new execution changes outputs alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

CELL_DEADLINE_S = 600
WORK = Path(__file__).resolve().parents[2] / "build" / "notebooks"


def script_as_notebook(script: Path) -> Any:
    """The notebook of a percent script, without outputs, its cells named by their position."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02d}"
    return notebook


def execute(script: Path, out: Path) -> None:
    """Run all cells in a new kernel and write the notebook; nothing is written when a cell fails."""
    notebook = script_as_notebook(script)
    client = NotebookClient(
        notebook,
        timeout=CELL_DEADLINE_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(WORK)}},
    )
    client.execute()
    jupytext.write(notebook, out, fmt="ipynb")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--out", type=Path, help="the notebook to write (default: beside the script)")
    args = parser.parse_args()
    out = (args.out or args.script.with_suffix(".ipynb")).resolve()
    for folder in (out.parent, WORK):
        folder.mkdir(parents=True, exist_ok=True)
    execute(args.script, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
