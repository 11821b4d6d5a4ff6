"""What several rooms' tests share: one cluster of four engines, since connecting costs seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tbkit.errors import ClusterError

CLOSE_S = 5.0


def children() -> dict[int, psutil.Process]:
    """All processes under this one, by pid."""
    return {process.pid: process for process in psutil.Process().children(recursive=True)}


def running(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that still run after so long; one that nobody has waited for has ended."""
    end = time.monotonic() + within_s
    while left := [one for one in processes if _runs(one)]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def still_running() -> Callable[[list[psutil.Process], float], list[psutil.Process]]:
    """Which of these processes run on after so many seconds."""
    return running


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Any]:
    """Four local engines. At the end no process and no file of theirs may be left."""
    import tbkit as tb

    before = children()
    cluster = tb.connect(local=4)
    yield cluster
    started = [process for pid, process in children().items() if pid not in before]
    assert len(started) >= 9, "controller, four engines, four ranks"
    check_close(cluster)
    assert running(started, CLOSE_S) == []
    assert not cluster._folder.exists()


def check_close(cluster: Any) -> None:
    """Nothing has to be killed, closing twice is harmless, and a call on what is closed says so."""
    assert cluster.close() == [] and cluster.close() == []
    assert {row["engine"] for row in cluster.status()} == {"gone"} and "closed" in repr(cluster)
    with pytest.raises(ClusterError, match="closed"):
        cluster.ask([0], "ping")


@pytest.fixture
def cluster4(session_cluster: Any) -> Any:
    """The shared cluster, mended before the test if the one before had harmed it."""
    session_cluster.heal(say=lambda _: None)
    return session_cluster
