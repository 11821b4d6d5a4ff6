"""``make test`` after lint and types: every test that this machine can run, C programs under sanitizers too.

Two phases, one call of pytest each: most tests go over two workers at once, tests of one group (``tests/conftest.py``
says which) to the same worker; then those marked ``alone`` or ``rack`` run by themselves, so that what they promise
in seconds is not judged beside other work. ``--unit`` leaves out the slow ones and those with engines: ``make check``.

What cannot run here is left out with one line that says why; with ``--strict`` that is a failure, and so is a
skipped test. Tests that only a Mac can run are deselected elsewhere and counted, never a failure. The last line
counts both phases as pytest's closing line does, and is kept in ``build/test/closing.txt``. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import system

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("build/test")
PYTEST_DEADLINE_S = 2400
STOP_DEADLINE_S = 60
PHASES = {
    "together": ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"],
    "alone": [],
}
NO_TESTS = 5  # pytest's exit code for a phase that none of the chosen tests belongs to
NO_CLOSING = "pytest ended without a closing line"
SUMMARY = re.compile(r"^=*\s*((?:(?:\d+ [a-z]+(?:, )?)+|no tests ran) in [\d.]+s.*?)\s*=*$")
COUNT = re.compile(r"(\d+) ([a-z]+)")
WORDS = (
    "failed",
    "passed",
    "skipped",
    "deselected",
    "xfailed",
    "xpassed",
    "warning",
    "error",
)  # pytest's order


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
    closing = NO_CLOSING
    try:
        for line in run.stdout or ():
            print(line, end="", flush=True)
            if found := SUMMARY.match(line.strip()):
                closing = found.group(1)
        return run.wait(), closing
    finally:
        alarm.cancel()
        stop(run)


def stop(run: subprocess.Popen[str]) -> None:
    """What still runs when the gate is stopped ends its fixtures first, and is killed after the deadline."""
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
        try:
            run.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)


def counts(closing: str) -> dict[str, int]:
    """How many of what a closing line tells, by pytest's word in the singular."""
    words = COUNT.findall(closing.split(" in ")[0])
    return {word.removesuffix("s") if word in ("warnings", "errors") else word: int(n) for n, word in words}


def total(closings: list[str], seconds: float) -> str:
    """One closing line for all phases; a phase without one leaves the whole without one."""
    if NO_CLOSING in closings:
        return NO_CLOSING
    told = [counts(closing) for closing in closings]
    sums = {word: sum(one.get(word, 0) for one in told) for word in WORDS}
    plural = {"warning": "warnings", "error": "errors"}
    parts = [f"{n} {plural.get(word, word) if n > 1 else word}" for word, n in sums.items() if n]
    long = f" ({timedelta(seconds=int(seconds))})" if seconds >= 60 else ""
    return f"{', '.join(parts) or 'no tests ran'} in {seconds:.2f}s{long}"


def worst(codes: list[int]) -> int:
    """The first exit code that tells a failure; a phase may be empty, but not all of them."""
    return next((code for code in codes if code not in (0, NO_TESTS)), min(codes))


def selection(unit: bool) -> tuple[list[str], bool]:
    """pytest's options for this machine, and whether a group had to be left out."""
    markers = [
        *(["not slow", "not cluster"] if unit else []),
        *(["not mac"] if sys.platform != "darwin" else []),
    ]
    options = ["-q"] if unit else []
    options += ["-m", " and ".join(markers)] if markers else []
    left_out = False
    folders = {system.CHROMIUM: "tests/browser", system.RACK: "tests/rack"}
    for need in () if unit else system.TESTED:
        if reason := system.provide(need):
            print(f"test: left out: {need.group} tests: {reason}", flush=True)
            options += [f"--ignore={folders[need]}"] if need in folders else []
            left_out = True
    return options, left_out


def verdict(code: int, closing: str, left_out: bool, strict: bool, unit: bool = False) -> int:
    """Say what the closing line holds that a reader could miss; the exit code of the gate."""
    count = counts(closing)
    if count.get("deselected") and not unit:
        print(f"test: {count['deselected']} deselected: only a Mac can run them")
    if strict and (left_out or count.get("skipped")):
        print("test: STRICT, and something was left out or skipped", file=sys.stderr)
        code = code or 1
    print(closing, flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true", help="anything left out is a failure")
    parser.add_argument("--unit", action="store_true", help="neither slow tests nor engines")
    args = parser.parse_args()
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    options, left_out = selection(args.unit)
    begun = time.monotonic()
    ended = [pytest([*options, *how, f"--phase={phase}"], args.strict) for phase, how in PHASES.items()]
    closing = total([line for _, line in ended], time.monotonic() - begun)
    if not args.unit:
        (OUT / "closing.txt").write_text(closing + "\n")
    return verdict(worst([code for code, _ in ended]), closing, left_out, args.strict, args.unit)


if __name__ == "__main__":
    sys.exit(main())
