"""The quickstart notebook executed in the small form, once a session.

Where the browser tests run in the same session, it is the notebook that JupyterLab saved; else it is executed here
without a browser. The published notebook is not touched: ``execute.py`` says how that one is made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "notebooks" / "01_quickstart.py"
FROM_LAB = ROOT / "build" / "browser" / "01_quickstart.ipynb"
OWN = ROOT / "build" / "notebooks" / "01_quickstart.ipynb"
DEADLINE_S = 540


@pytest.fixture(scope="session")
def executed(request: pytest.FixtureRequest) -> Any:
    """The notebook with its outputs, as nbformat reads it."""
    lab_ran = any((ROOT / "tests" / "browser") in item.path.parents for item in request.session.items)
    saved = FROM_LAB if lab_ran and FROM_LAB.exists() else _execute(OWN)
    return nbformat.read(saved, as_version=4)


def _execute(out: Path) -> Path:
    env = os.environ | {"TBKIT_SMALL": "1", "PYTHONPATH": _with_root(os.environ.get("PYTHONPATH"))}
    tool = Path(__file__).with_name("execute.py")
    command = [sys.executable, str(tool), str(SCRIPT), "--out", str(out)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        pytest.fail(f"the notebook did not run:\n{done.stderr[-4000:]}")
    return out


def _with_root(path: str | None) -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [path])])
