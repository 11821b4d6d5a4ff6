"""``make setup`` and the gate: what a user can cause ends in one line; the closing line tells the truth."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tool(monkeypatch):
    """Import a script of tools/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module


@pytest.fixture
def bare_checkout(tmp_path):
    """A folder, with a space in its name, that holds what ``make setup`` reads."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def make_setup(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Exit code and what was said on standard error, without make's own closing line."""
    done = subprocess.run(
        ["make", "setup", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("make")]


def test_a_wrong_python_gives_one_line(bare_checkout):
    """A program that is no Python 3.11 is named, with the remedy."""
    code, said = make_setup(bare_checkout, "PYTHON=false")

    assert code != 0
    assert len(said) == 1
    assert "false is not a Python 3.11 or newer" in said[0]
    assert "make PYTHON=" in said[0]


def test_no_python_gives_one_line(bare_checkout):
    """Where none of the usual names is a Python 3.11, that is said."""
    code, said = make_setup(bare_checkout, "PYTHON=")

    assert code != 0
    assert len(said) == 1
    assert "no Python 3.11 or newer was found" in said[0]


def test_no_compiler_gives_one_line(bare_checkout):
    """The compiler is looked for before anything is installed."""
    code, said = make_setup(bare_checkout, f"PYTHON={sys.executable}", CXX="no-such-compiler")

    assert code != 0
    assert len(said) == 1
    assert "no C++ compiler runs (tried no-such-compiler)" in said[0]
    assert not (bare_checkout / ".venv").exists()


@pytest.mark.slow
def test_no_network_gives_one_line(bare_checkout):
    """An index that cannot be reached is told apart from other failures; the log is named."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    closed = dict.fromkeys(names, "http://127.0.0.1:9")
    code, said = make_setup(
        bare_checkout, f"PYTHON={sys.executable}", UV_CACHE_DIR=str(bare_checkout), **closed
    )

    assert code != 0
    assert len(said) == 1
    assert "no package index was reached: connect to the network" in said[0]
    assert "build/setup.log" in said[0]


def test_no_venv_module_is_named(tool, monkeypatch):
    """A Python without ensurepip (Debian's, before python3-venv) is refused with the package's name."""
    environment = tool("environment")
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(environment.system, "apt_install", lambda _: False)

    with pytest.raises(environment.SetupFailed, match=r"no venv module.*python3-venv"):
        environment.check_python()


def test_the_installer_itself_is_pinned_with_hashes(tool, monkeypatch):
    """uv comes from the lock like everything else."""
    monkeypatch.chdir(ROOT)
    lines = tool("environment").pinned("uv").splitlines()

    assert lines[0].startswith("uv==")
    assert all("--hash=sha256:" in line for line in lines[1:])


def test_a_missing_program_is_reported_where_nothing_can_be_installed(tool, monkeypatch):
    """Elsewhere than as root on Debian, the group is left out with its remedy."""
    system = tool("system")
    monkeypatch.setattr(system, "can_install", lambda: False)
    need = system.Need("group", ("no-such-program",), ("no-such-package",), "install the thing")

    assert system.provide(need) == "install the thing; only root on Debian gets it by itself"


@pytest.mark.parametrize(
    ("line", "closing"),
    [
        ("==== 5 passed, 2 deselected in 1.20s ====", "5 passed, 2 deselected in 1.20s"),
        (
            "1 failed, 5 passed, 1 skipped in 61.00s (0:01:01)",
            "1 failed, 5 passed, 1 skipped in 61.00s (0:01:01)",
        ),
        ("5 passed were expected", None),
    ],
)
def test_the_closing_line_is_recognised(tool, line, closing):
    """pytest's last line, with and without its frame."""
    found = tool("gate").SUMMARY.match(line)

    assert (found and found.group(1)) == closing


@pytest.mark.parametrize(
    ("closing", "left_out", "strict", "code"),
    [
        ("5 passed, 2 deselected in 1.20s", False, True, 0),
        ("5 passed, 1 skipped in 1.20s", False, True, 1),
        ("5 passed, 1 skipped in 1.20s", False, False, 0),
        ("5 passed in 1.20s", True, True, 1),
        ("5 passed in 1.20s", True, False, 0),
    ],
)
def test_strict_fails_on_anything_left_out(tool, capsys, closing, left_out, strict, code):
    """Skips and absent groups fail the strict gate alone; what only a Mac can run never does."""
    assert tool("gate").verdict(0, closing, left_out, strict) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == closing
    assert ("2 deselected: only a Mac can run them" in out) == ("deselected" in closing)
