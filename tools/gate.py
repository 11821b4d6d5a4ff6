"""``make test`` after lint and types: every test that this machine can run, C programs under sanitizers too.

What cannot run here is left out with one line that says why; with ``--strict`` that is a failure, and so is a
skipped test. Tests that only a Mac can run are deselected elsewhere and counted, never a failure. pytest's
closing line is the last one printed and kept in ``build/test/closing.txt``. Standard library only.
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
PYTEST_DEADLINE_S = 2400
SUMMARY = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+ in [\d.]+s.*?)\s*=*$")


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
    left_out = False
    for need, folder in ((system.CHROMIUM, "tests/browser"), (system.RACK, "tests/rack")):
        if reason := system.provide(need):
            print(f"test: left out: {need.group} tests: {reason}", flush=True)
            options.append(f"--ignore={folder}")
            left_out = True
    return options, left_out


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
    code, closing = pytest(options, strict)
    (OUT / "closing.txt").write_text(closing + "\n")
    return verdict(code, closing, left_out, strict)


if __name__ == "__main__":
    sys.exit(main())
