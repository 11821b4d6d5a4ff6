"""A local cluster does not outlive the process that made it: controller and engines watch that process.

A notebook kernel killed with SIGKILL, maybe in the middle of closing, runs no clean-up of its own. Each of them
then ends its children, the private folder with its keys, and itself.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress

import msgspec
import psutil

POLL_S = 1.0
GRACE_S = 1.0


class Owner(msgspec.Struct, frozen=True):
    """Who made a cluster on this machine, by pid and start time, and the private folder that is to go with it."""

    pid: int
    started: float
    folder: str


def owner_here(folder: str) -> Owner:
    """This process as the owner."""
    return Owner(os.getpid(), psutil.Process().create_time(), folder)


def watch(owner: Owner) -> None:
    """Watch the owner from a thread of this process, as long as it lives."""
    threading.Thread(target=_watch, args=(owner,), name="tbkit-owner", daemon=True).start()


def _watch(owner: Owner) -> None:
    while _lives(owner):
        time.sleep(POLL_S)
    with suppress(psutil.Error):
        _end(
            psutil.Process().children(recursive=True)
        )  # rank process and nanny, or the controller's schedulers
    shutil.rmtree(owner.folder, ignore_errors=True)
    os._exit(1)


def _lives(owner: Owner) -> bool:
    try:
        process = psutil.Process(owner.pid)
        return bool(process.create_time() == owner.started and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=GRACE_S)[1]:
        with suppress(psutil.Error):
            process.kill()
