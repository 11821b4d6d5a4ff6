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
    ("closings", "seconds", "whole"),
    [
        (["5 passed, 2 deselected in 1.20s", "3 passed in 2.00s"], 4.0, "8 passed, 2 deselected in 4.00s"),
        (
            ["1 failed, 1 error in 1.20s", "4 passed, 1 skipped, 1 warning, 2 errors in 90.00s (0:01:30)"],
            92.5,
            "1 failed, 4 passed, 1 skipped, 1 warning, 3 errors in 92.50s (0:01:32)",
        ),
        (["5 passed in 1.20s", "7 deselected in 0.30s"], 2.0, "5 passed, 7 deselected in 2.00s"),
        (["5 passed in 1.20s", "no tests ran in 0.30s"], 2.0, "5 passed in 2.00s"),
        (
            ["5 passed in 1.20s", "pytest ended without a closing line"],
            2.0,
            "pytest ended without a closing line",
        ),
    ],
)
def test_one_closing_line_counts_all_phases(tool, closings, seconds, whole):
    """Each word is added up in pytest's order; a phase that was cut off leaves no line that looks whole."""
    assert tool("gate").total(closings, seconds) == whole


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, 5], 0), ([5, 5], 5), ([0, 1], 1), ([1, 0], 1), ([5, 1], 1), ([-9, 0], -9)],
)
def test_a_failure_of_any_phase_is_the_gate_s(tool, codes, code):
    """A phase may have no tests, but not all of them."""
    assert tool("gate").worst(codes) == code


MARKED = """
import os, pytest

@pytest.mark.parametrize("n", range(4))
def test_beside_others(n):
    with open("FILE", "a") as file: print(os.environ["PYTEST_XDIST_WORKER"], file=file)

@pytest.mark.alone
def test_alone(): assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.rack
def test_on_virtual_nodes(): assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.mac
def test_on_a_mac(): pass

@pytest.mark.alone
@pytest.mark.mac
def test_alone_on_a_mac(): pass
"""


def test_the_phases_run_each_test_once_and_count_what_is_deselected(tool, tmp_path, monkeypatch):
    """What is marked alone or rack runs in the second phase, without workers; a group's tests share one worker.

    Two workers deselect the same tests, which are counted once.
    """
    for name in ("pyproject.toml", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for room in ("fabric", "rank"):
        (tmp_path / "tests" / room).mkdir()
        for name in ("test_first.py", "test_second.py"):
            (tmp_path / "tests" / room / name).write_text(MARKED.replace("FILE", f"workers-{room}"))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.chdir(tmp_path)
    gate = tool("gate")
    ended = {
        phase: gate.pytest(["-m", "not mac", *how, f"--phase={phase}"], strict=True)
        for phase, how in gate.PHASES.items()
    }

    assert {phase: (code, gate.counts(line)) for phase, (code, line) in ended.items()} == {
        "together": (0, {"passed": 16, "deselected": 4}),
        "alone": (0, {"passed": 8, "deselected": 4}),
    }
    workers = {room: (tmp_path / f"workers-{room}").read_text().split() for room in ("fabric", "rank")}
    assert {room: (len(told), len(set(told))) for room, told in workers.items()} == {
        "fabric": (8, 1),
        "rank": (8, 1),
    }


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
