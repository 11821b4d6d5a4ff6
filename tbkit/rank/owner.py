"""A local cluster does not outlive the process that made it: every engine watches that process.

A notebook kernel killed with SIGKILL runs no clean-up of its own. Its engines then end their children, the
controller and the private folder with its keys, and themselves; each does it, whoever comes first.
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
    """Who made a cluster on this machine (pid and start time), and what is to end with it."""

    pid: int
    started: float
    controller_pid: int
    folder: str


def owner_here(controller_pid: int, folder: str) -> Owner:
    """This process as the owner."""
    return Owner(os.getpid(), psutil.Process().create_time(), controller_pid, folder)


def watch(owner: Owner) -> None:
    """Watch the owner from a thread of this engine, as long as the engine lives."""
    threading.Thread(target=_watch, args=(owner,), name="tbkit-owner", daemon=True).start()


def _watch(owner: Owner) -> None:
    while _lives(owner):
        time.sleep(POLL_S)
    with suppress(psutil.Error):
        children = psutil.Process().children(recursive=True)  # the rank process and the nanny
        _end([*children, psutil.Process(owner.controller_pid)])
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
