"""Where a run was made: versions, platform, processors, memory, load. No name of host or user.

Read once when a run starts and kept as ``environment.json``. What a system does not tell is None.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("tbkit", "mlx", "mlx-lm", "ipyparallel", "numpy", "pyarrow", "plotly")
_GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def environment() -> dict[str, Any]:
    """The facts of this machine and Python, as plain data for JSON; sizes in bytes."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpu_count_usable": usable_cpus(),
        "memory_total_bytes": total_memory_bytes(),
        "load_average": load_average(),
        "cpu_governor": _read(_GOVERNOR),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that shape a result; None where one is not installed.

    From the installed metadata: nothing is imported.
    """
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def cpu_model() -> str | None:
    """The processor's name as the system gives it."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    lines = (_read("/proc/cpuinfo") or "").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def usable_cpus() -> int | None:
    """Processors that this process may use; on macOS, where none can be forbidden, all of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def total_memory_bytes() -> int | None:
    """Memory of the machine in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def load_average() -> list[float] | None:
    """Runnable processes over 1, 5 and 15 minutes."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
