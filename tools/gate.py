"""``make test`` after lint and types: C tests under sanitizers, then every Python test this machine can run.

What cannot run here is left out with one line that says why; with ``--strict`` that is a failure, and so is a
skipped test. Tests that only a Mac can run are deselected elsewhere and counted, never a failure. pytest's
closing line is kept in ``build/test/closing.txt``. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import system

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("build/test")
C_TESTS = Path("tests/kernels_c")
SANITIZERS = "address,undefined"
C_DEADLINE_S = 300
PYTEST_DEADLINE_S = 2400
SUMMARY = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+ in [\d.]+s.*?)\s*=*$")


def c_steps() -> list[list[str]]:
    """Configure and build the C tests with address and undefined-behaviour sanitizers, then each program."""
    build = OUT / "c"
    options = ["-DCMAKE_BUILD_TYPE=Debug", "-DTBKIT_PYTHON=OFF", "-DTBKIT_TESTS=ON"]
    options += [f"-DTBKIT_SANITIZE={SANITIZERS}"]
    programs = sorted(build / source.stem for source in C_TESTS.glob("test_*.c"))
    return [
        ["cmake", "-S", "kernels_c", "-B", str(build), "-G", "Ninja", *options],
        ["cmake", "--build", str(build)],
        *([str(program)] for program in programs),
    ]


def c_tests() -> bool:
    """Run all C steps; what a failing one printed is shown. True when every program passed."""
    scripts = str(Path(sys.executable).parent)
    env = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    steps = c_steps()
    for step in steps:
        try:
            done = subprocess.run(step, env=env, capture_output=True, text=True, timeout=C_DEADLINE_S)
        except subprocess.TimeoutExpired:
            print(f"test: deadline of {C_DEADLINE_S} s passed: {' '.join(step)}", file=sys.stderr)
            return False
        if done.returncode:
            print(done.stdout + done.stderr)
            print(f"test: C tests failed (exit {done.returncode}): {' '.join(step)}", file=sys.stderr)
            return False
    print(f"test: {len(steps) - 2} C test programs passed under {SANITIZERS}", flush=True)
    return True


def pytest(options: list[str], strict: bool) -> tuple[int, str]:
    """Run pytest with its output passed on; its exit code and closing line. The deadline ends all of it.

    Tests see ``STRICT=1``: what they would skip for want of something is then a failure.
    """
    command = [sys.executable, "-m", "pytest", "--durations=10", "--durations-min=5", *options]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    env = os.environ | {"STRICT": "1" if strict else ""}
    run = subprocess.Popen(command, **quiet, env=env, text=True, bufsize=1, start_new_session=True)
    alarm = threading.Timer(PYTEST_DEADLINE_S, os.killpg, (run.pid, signal.SIGKILL))
    alarm.start()
    closing = "pytest ended without a closing line"
    for line in run.stdout or ():
        print(line, end="", flush=True)
        if found := SUMMARY.match(line.strip()):
            closing = found.group(1)
    code = run.wait()
    alarm.cancel()
    return code, closing


def selection() -> tuple[list[str], bool]:
    """pytest's options for this machine, and whether a group had to be left out."""
    options = [] if sys.platform == "darwin" else ["-m", "not mac"]
    if reason := system.provide(system.CHROMIUM):
        print(f"test: left out: {system.CHROMIUM.group} tests: {reason}", flush=True)
        return [*options, "--ignore=tests/browser"], True
    return options, False


def verdict(code: int, closing: str, left_out: bool, strict: bool) -> int:
    """Say what the closing line holds that a reader could miss; the exit code of the gate."""
    count = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", closing)}
    if count.get("deselected"):
        print(f"test: {count['deselected']} deselected: only a Mac can run them")
    if strict and (left_out or count.get("skipped")):
        print("test: STRICT, and something was left out or skipped", file=sys.stderr)
        code = code or 1
    print(closing, flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true", help="anything left out is a failure")
    strict = parser.parse_args().strict
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    options, left_out = selection()
    c_passed = c_tests()
    code, closing = pytest(options, strict)
    (OUT / "closing.txt").write_text(closing + "\n")
    code = verdict(code, closing, left_out, strict)
    return code if c_passed else code or 1


if __name__ == "__main__":
    sys.exit(main())
