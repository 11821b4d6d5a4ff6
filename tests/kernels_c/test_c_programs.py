"""The C tests, built with sanitizers and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels_c"
CORE = ("wait", "channel", "wire", "verbs", "mesh", "collective", "window", "process")  # all but python/
ROOMS = [KERNELS / room for room in CORE]
INCLUDES = [f"-I{room}" for room in ROOMS]
COMPILER = os.environ.get("CC", "cc")
FLAGS = [
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-DTB_SANITIZED",
    "-g",
    "-O1",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
]
PROGRAMS = [
    ("address,undefined", "test_reduce"),
    ("address,undefined", "test_channel"),
    ("address,undefined", "test_group"),
    ("address,undefined", "test_heartbeat"),
    ("address,undefined", "test_wire"),
    ("address,undefined", "test_mesh"),
    ("address,undefined", "test_shaped"),
    ("address,undefined", "test_window"),
    ("thread", "test_channel"),
    ("thread", "test_group"),
    ("thread", "test_mesh"),
    ("thread", "test_shaped"),
    ("thread", "test_window"),
]
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C compiler")


def run(command: list[str], folder: Path, timeout_s: float = 120.0) -> None:
    options = {
        "ASAN_OPTIONS": "detect_leaks=1" if sys.platform == "linux" else "",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    done = subprocess.run(
        command, cwd=folder, env=os.environ | options, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr[-4000:]}"


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the core's objects under some sanitizers, compiled once."""
    folders: dict[str, Path] = {}

    def compiled(sanitizers: str) -> Path:
        if sanitizers not in folders:
            folders[sanitizers] = tmp_path_factory.mktemp("core")
            sources = [str(path) for room in ROOMS for path in sorted(room.glob("*.c"))]
            run(
                [COMPILER, *FLAGS, f"-fsanitize={sanitizers}", *INCLUDES, "-c", *sources], folders[sanitizers]
            )
        return folders[sanitizers]

    return compiled


def built(core: Callable[[str], Path], sanitizers: str, program: str, *more: str) -> Path:
    """A C program of this folder with the core, under sanitizers."""
    folder = core(sanitizers)
    objects = [str(path) for path in sorted(folder.glob("*.o"))]
    sanitize = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    target = folder / program
    sources = [str(HERE / f"{program}.c"), *objects]
    run(
        [COMPILER, *FLAGS, *sanitize, *more, *INCLUDES, *sources, "-o", str(target), "-lpthread", "-lm"],
        folder,
    )
    return target


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("sanitizers", "program"), PROGRAMS)
def test_program_passes_under_sanitizers(core: Callable[[str], Path], sanitizers: str, program: str) -> None:
    """Each C test ends with 0 under AddressSanitizer and UBSan, the threaded ones under ThreadSanitizer
    too."""
    target = built(core, sanitizers, program)
    # ThreadSanitizer of older compilers cannot bear much address randomisation.
    prefix = ["setarch", "-R"] if sys.platform == "linux" and shutil.which("setarch") else []
    run([*prefix, str(target)], target.parent)


@pytest.mark.slow
@needs_compiler
def test_what_a_fuzzer_found_worth_keeping_is_read_without_a_fault(core: Callable[[str], Path]) -> None:
    """The corpus of ten minutes' fuzzing: cards, hellos and streams from others neither crash nor hang a reader."""
    inputs = sorted(str(path) for path in (HERE / "corpus").iterdir())
    assert len(inputs) > 50
    target = built(core, "address,undefined", "fuzz_parsers", "-DTB_REPLAY")
    run([str(target), *inputs], target.parent)
