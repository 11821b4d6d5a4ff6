"""What a supervisor has: observers, heartbeats, children that die with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tbkit import _kernels
from tbkit.errors import FabricError, Interrupted, UsageError
from tbkit.fabric import discard, observe

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[2]


def python(code: str, **more: Any) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **more)


def end_of(process: subprocess.Popen[bytes], within_s: float) -> int:
    try:
        return process.wait(within_s)
    finally:
        process.kill()
        process.wait()


def test_an_observer_made_before_the_ranks_reads_their_operations(victims: Any, name: str) -> None:
    """It sees who waits in what, with times, and still reads the last words of a killed rank."""
    join = "from tbkit.fabric import join\ng = join(name, rank, size, 20.0)"
    with observe(name, 2) as observer:
        assert observer.attached == 0 and [facts.state for facts in observer.ranks()] == ["absent"] * 2
        victims.run(join, [0, 1], name=name)
        victims.run("g.barrier()", [0, 1])
        victims.start("g.recv(np.zeros(2), 1)", [0], {})
        time.sleep(0.2)
        waiting, idle = observer.ranks()
        assert (waiting.operation, waiting.peer, waiting.done, waiting.sequence) == ("recv", 1, False, 2)
        assert (idle.operation, idle.peer, idle.done, idle.state) == ("barrier", None, True, "attached")
        now = time.monotonic_ns()
        assert 0.1e9 < now - waiting.start_ns < 5e9 and now - waiting.heartbeat_ns < 1e9
        assert waiting.pid == victims.ranks[0].process.pid and "recv" in str(waiting)
        victims.ranks[1].end()
        victims.collect([0])
        assert observer.ranks()[0].operation == "recv"
        assert observer.broken is not None and observer.broken["peer"] == 1
    assert name not in {path.name for path in Path("/dev/shm").glob("*")}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_observer_comes_late_by_the_segment_path_and_interrupts(victims: Any) -> None:
    """The segment of a running group, whose name is gone, is reached through its rank's descriptor."""
    victims.group(2)
    path = victims.run("result = g.segment_path", [0])[0]
    with observe(path) as observer, observe(os.open(path, os.O_RDWR)) as second:
        victims.start("g.barrier()", [0], {})
        time.sleep(0.1)
        assert second.ranks()[0].operation == "barrier" and observer.size == 2
        observer.interrupt()
        assert isinstance(victims.collect([0])[0], Interrupted)


def test_an_observer_of_nothing_is_an_error(name: str, tmp_path: Path) -> None:
    """No such name, a file that is no segment, a size that cannot be: each is said; a new name is cleared
    away."""
    with pytest.raises(FabricError):
        observe(name, deadline_s=0.1)
    with pytest.raises(UsageError):
        observe(name, 17)
    other = tmp_path / "other"
    other.write_bytes(b"\0" * 20000)
    with pytest.raises(FabricError):
        observe(os.open(other, os.O_RDWR))
    with observe(name, 2):
        assert (Path("/dev/shm") / name).exists()
    assert not (Path("/dev/shm") / name).exists()
    discard(name)


def test_heartbeats_go_on_while_the_gil_is_held() -> None:
    """The thread writes each interval though Python code holds the GIL all the time."""
    read, write = os.pipe()
    code = f"""
import re
from tbkit import _kernels
_kernels.start_heartbeat({write}, 0.02, message=b"b")
while True:
    re.match(r"(a*)*b", "a" * 24)
"""
    process = python(code, pass_fds=[write])
    os.close(write)
    try:
        beats, end = 0, time.monotonic() + 10
        while beats < 25 and select.select([read], [], [], end - time.monotonic())[0]:
            beats += len(os.read(read, 100))
        assert beats >= 25
    finally:
        process.kill()
        process.wait()
        os.close(read)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_process_whose_supervisor_is_gone_ends_itself(kind: str) -> None:
    """End-of-file on the watched descriptor ends the process with code 113 after the grace, GIL held or
    not."""
    import socket

    ours: Any
    theirs: Any
    if kind == "socket":
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
    else:
        read, fd = os.pipe()
        ours, theirs = os.fdopen(read, "rb", 0), os.fdopen(fd, "wb", 0)
    code = f"from tbkit import _kernels\n_kernels.start_heartbeat({fd}, 0.05, grace_s=0.1)\nwhile True: pass"
    process = python(code, pass_fds=[fd])
    theirs.close()
    assert ours.read(1) if kind == "pipe" else ours.recv(1)
    ours.close()
    assert end_of(process, 5.0) == 113


def test_one_heartbeat_a_process() -> None:
    """A second start is an error, stop and start again works, and bad arguments are usage errors."""
    read, write = os.pipe()
    try:
        _kernels.start_heartbeat(write, 0.01)
        with pytest.raises(FabricError):
            _kernels.start_heartbeat(write, 0.01)
        time.sleep(0.1)
        _kernels.stop_heartbeat()
        assert _kernels.heartbeat_count() >= 3
        with pytest.raises(UsageError):
            _kernels.start_heartbeat(write, 0.0)
        _kernels.start_heartbeat(write, 0.01), _kernels.stop_heartbeat()
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_children_die_with_their_parent() -> None:
    """A child that asked for it gets the signal when its parent is killed."""
    child = "import time; from tbkit import _kernels; _kernels.die_with_parent({}, 15); "
    child += "print('up', flush=True); time.sleep(60)"
    code = f"""
import os, subprocess, sys, time
command = [sys.executable, "-c", {child!r}.format(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = python(code, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    watch = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    assert select.select([watch], [], [], 5.0)[0], "the child lives on"
    os.close(watch)
    end_of(parent, 5.0)
    parent.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_child_whose_parent_is_already_gone_ends_at_once() -> None:
    """The parent may end before the child asks: the child compares and exits."""
    process = python("from tbkit import _kernels; _kernels.die_with_parent(1 << 22); print('lives')")
    assert end_of(process, 10.0) == 128 + signal.SIGKILL


def test_timer_slack_can_be_set() -> None:
    """The calling thread's timers become exact."""
    assert _kernels.set_timer_slack_ns(1)
    assert _kernels.set_timer_slack_ns(50_000)
