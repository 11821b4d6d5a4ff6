"""``pip install .`` into somebody's own JupyterLab environment, used from outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
LOAD = (
    "from IPython.core.interactiveshell import InteractiveShell as Shell; shell = Shell.instance(); "
    "shell.run_line_magic('load_ext', 'tbkit'); "
    "print(sorted(name for name in shell.magics_manager.magics['line'] if name.startswith('tb')))"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command, in an environment that knows nothing of this checkout."""
    clean = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def checkout(folder: Path) -> Path:
    """A copy of the repository's files alone: nothing that an earlier build left behind."""
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """The bin folder of a fresh JupyterLab environment into which the project was installed."""
    base = tmp_path_factory.mktemp("install")
    venv = base / "lab"
    run(UV, "venv", "--python", sys.executable, venv, cwd=base)
    install = [
        UV,
        "pip",
        "install",
        "--python",
        venv / "bin" / "python",
        "--constraint",
        ROOT / "requirements.lock",
    ]
    run(*install, "jupyterlab", cwd=base)
    run(*install, checkout(base / "tbkit-source"), cwd=base)
    return venv / "bin"


def test_the_package_and_its_module_import(lab, tmp_path):
    """The compiled module comes with the package and from the new environment."""
    out = run(lab / "python", "-c", "import tbkit, tbkit._kernels as k; print(k.__file__)", cwd=tmp_path)

    assert Path(out.strip()).is_relative_to(lab.parent)


def test_the_command_tells_its_version(lab, tmp_path):
    """``tbkit --version`` is the installed command."""
    out = run(lab / "tbkit", "--version", cwd=tmp_path)

    assert "0.1.0" in out


def test_the_extension_loads(lab, tmp_path):
    """``%load_ext tbkit`` brings the magics, and JupyterLab is still whole beside it."""
    magics = run(lab / "python", "-c", LOAD, cwd=tmp_path)
    kernels = json.loads(run(lab / "jupyter", "kernelspec", "list", "--json", cwd=tmp_path))["kernelspecs"]

    assert "tbcluster" in magics
    assert "python3" in kernels
