"""``python -m tests.bench [--slow] [NAME …]``: run the benchmarks on an idle machine, print one table.

Every module ``bench_NAME.py`` beside this one has ``measure()``, which gives a list of rows. They go to
``build/bench/NAME.json``. Exit 0 when all bars hold, 1 when one does not, 2 on a busy machine.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tbkit.stats import Interval
from tests.bench.table import absolute, keep, table

SLOW = {"make quickstart": (["make", "quickstart"], 240.0), "make test": (["make", "test"], 300.0)}
BUSY_PERCENT, SAMPLE_S = 10.0, 2.0


def refusal() -> str:
    """Why this machine is too busy to measure on; the empty string when it is idle."""
    busy = max(psutil.cpu_percent(interval=SAMPLE_S, percpu=True))
    if busy <= BUSY_PERCENT:
        return ""
    rule = f"at most {BUSY_PERCENT:g} % over {SAMPLE_S:g} s"
    return f"bench: the machine is busy: {rule} of a core may be in use, got {busy:.0f} %; stop what runs"


def names() -> list[str]:
    """Every benchmark that is there, by the name of its module."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def timed(what: str, command: list[str], limit_s: float) -> dict[str, Any]:
    """One run of a long command, its output passed on; a failure counts as the limit missed."""
    start = time.perf_counter()
    code = subprocess.run(command).returncode
    seconds = time.perf_counter() - start
    row = absolute(
        f"{what}, after set-up, timed once", "s", Interval(seconds, seconds, seconds, 1), limit_s, what
    )
    return row | {"holds": row["holds"] and code == 0}


def measured(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark, kept as soon as they are there."""
    print(f"bench: {name} …", file=sys.stderr, flush=True)
    rows = importlib.import_module(f"tests.bench.bench_{name}").measure()
    keep(name, rows)
    return list(rows)


def slow() -> list[dict[str, Any]]:
    """quickstart and test, once each."""
    rows = [timed(what, command, limit_s) for what, (command, limit_s) in SLOW.items()]
    keep("slow", rows)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--slow", action="store_true", help="time make quickstart and make test once each")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"only these; there are {', '.join(names())}"
    )
    args = parser.parse_args()
    if unknown := set(args.names) - set(names()):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    if reason := refusal():
        print(reason, file=sys.stderr)
        return 2
    rows = slow() if args.slow else [row for name in args.names or names() for row in measured(name)]
    print(table(rows))
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
