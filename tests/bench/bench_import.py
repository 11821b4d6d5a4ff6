"""``import tbkit`` above bare Python, ``%load_ext tbkit`` in running IPython, and what stays unloaded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from tbkit.stats import Interval, mean_interval, paired_difference
from tests.bench.table import absolute

LAUNCHES = 15
IMPORT_LIMIT_S, EXTENSION_LIMIT_S = 0.3, 0.5
HEAVY = {"mlx", "pandas", "plotly"}
LOADED = f"import json, sys; print(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
EXTENSION = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
start = time.perf_counter()
shell.run_line_magic("load_ext", "tbkit")
print(time.perf_counter() - start)
"""


def launch(code: str) -> tuple[float, str]:
    """Seconds from the start to the end of a fresh interpreter, and the last line it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return time.perf_counter() - start, (done.stdout.splitlines() or [""])[-1]


def interleaved(first: str, second: str, launches: int = LAUNCHES) -> tuple[list[float], list[float]]:
    """Launch times of two programs, in turn, the order swapped each time; the first pair is not counted."""
    launch(first), launch(second)
    pairs = []
    for turn in range(launches):
        order = (first, second) if turn % 2 == 0 else (second, first)
        times = {code: launch(code)[0] for code in order}
        pairs.append((times[first], times[second]))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def unloaded(what: str, code: str) -> dict[str, Any]:
    """A row that holds when none of the heavy modules is in ``sys.modules`` after ``code``."""
    heavy = json.loads(launch(f"{code}\n{LOADED}")[1])
    count = float(len(heavy))
    row = absolute(what, "modules", Interval(count, count, count, 1), 1.0, f"python -c '{what}'")
    return row | {"peer_value": 0.0, "ratio": count, "bar": "<= 0", "holds": not heavy}


def measure() -> list[dict[str, Any]]:
    """Four rows: two times, two sets of modules."""
    ours, bare = interleaved("import tbkit", "pass")
    extension = [float(launch(EXTENSION)[1]) for _ in range(LAUNCHES)]
    loads = ", ".join(sorted(HEAVY))
    imported, loaded = "import tbkit", "%load_ext tbkit"
    return [
        absolute(
            f"{imported}, above bare Python", "s", paired_difference(ours, bare), IMPORT_LIMIT_S, imported
        ),
        absolute(f"{loaded}, running IPython", "s", mean_interval(extension), EXTENSION_LIMIT_S, loaded),
        unloaded(f"{imported}: loads of {loads}", "import tbkit"),
        unloaded(f"{loaded}: loads of {loads}", EXTENSION),
    ]
