"""System packages: what the tests and the benchmarks need beyond Python, and who can install it.

``python tools/system.py bench`` is called by ``make bench``, ``test`` by ``make test`` before it builds the module;
``tools/gate.py`` says what could not be had.
Root on Debian gets what is missing; elsewhere the missing group is named with its remedy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

LOG = Path("build/apt.log")


class Need(NamedTuple):
    """What a group of tests needs: any one of some programs, or all of them, and the Debian packages with it."""

    group: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    remedy: str
    all_of_them: bool = False
    files: tuple[str, ...] = ()


CHROMIUM = Need(
    "browser",
    ("chromium", "google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    ("chromium", "fonts-dejavu-core"),
    "install Chrome or Chromium",
)
OPEN_MPI = Need("Open MPI peer", ("mpirun",), ("openmpi-bin",), "install Open MPI")
VERBS = Need(
    "verbs",
    (),
    ("libibverbs-dev",),
    "install libibverbs-dev, then make setup again",
    all_of_them=True,
    files=("/usr/include/infiniband/verbs.h",),
)
# dropbear-bin, because installing OpenSSH's server starts it.
RACK = Need(
    "rack",
    (
        "qemu-system-x86_64",
        "setpriv",
        "rdma",
        "tc",
        "ibv_devinfo",
        "ib_send_lat",
        "dropbear",
        "ssh-keygen",
        "ping",
    ),
    (
        *(
            "qemu-system-x86",
            "util-linux",
            "iproute2",
            "ibverbs-providers",
            "ibverbs-utils",
            "libibverbs-dev",
        ),
        *("perftest", "dropbear-bin", "openssh-client", "iputils-ping"),
    ),
    "install qemu, perftest, ibverbs-utils, iproute2, dropbear and OpenSSH's client",
    all_of_them=True,
)


TESTED = (CHROMIUM, RACK, VERBS)


def can_install() -> bool:
    """True for root on a machine with Debian's package tools."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(packages: list[str] | tuple[str, ...]) -> bool:
    """Install Debian packages as root, quietly; false where that cannot be or did not work."""
    if not can_install():
        return False
    LOG.parent.mkdir(exist_ok=True)
    print(f"system: installing {', '.join(packages)} (output in {LOG})", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    steps = (["update"], ["install", "-y", "--no-install-recommends", *packages])
    with LOG.open("a") as log:
        done = [
            subprocess.run(
                ["apt-get", "-q", *step], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            ).returncode
            for step in steps
        ]
    return done[-1] == 0


def provide(need: Need) -> str:
    """Make sure that the need is met; the empty string, or why it is not."""

    def found() -> bool:
        enough = all if need.all_of_them else any
        there = enough(shutil.which(program) for program in need.programs)
        return there and all(Path(file).exists() for file in need.files)

    if found() or (apt_install(need.packages) and found()):
        return ""
    why = f"apt-get failed, see {LOG}" if can_install() else "only root on Debian gets it by itself"
    return f"{need.remedy}; {why}"


def main() -> int:
    """``bench``: its peers, or it cannot be. ``test``: what can be had, before the module is built; the gate judges."""
    if sys.argv[1:] == ["test"]:
        for need in TESTED:
            provide(need)
        return 0
    reason = provide(OPEN_MPI)
    if reason:
        print(f"bench: no {OPEN_MPI.group}: {reason}", file=sys.stderr)
    return 2 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
