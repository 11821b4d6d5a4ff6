"""A rank process under its supervisor: it answers, it dies with a reason, it stops when asked, it leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbkit.errors import (
    BufferRejected,
    ClusterError,
    ConnectFailed,
    DeadlinePassed,
    FabricTimeout,
    Interrupted,
    RankDied,
    UsageError,
)
from tbkit.rank import supervisor as module
from tbkit.rank import wire
from tbkit.rank.supervisor import Supervisor

pytestmark = pytest.mark.alone
Start = Callable[..., Supervisor]
Ends = Callable[[int, float], bool]
ROOT = Path(__file__).parents[2]
SPIN = "import time\nfor _ in range(3000): time.sleep(0.01)"
DEAF = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end:\n" + (
    "    try: time.sleep(0.05)\n    except {}: pass"
)
LONE_JOIN = {"name": "", "rank": 0, "size": 2, "deadline_s": 20.0, "policy": "auto", "world": False}


def later(seconds: float, number: int, pid: int) -> threading.Timer:
    """Send a signal after a while."""
    timer = threading.Timer(seconds, os.kill, (pid, number))
    timer.start()
    return timer


def pid_of(one: Supervisor) -> int:
    assert one.process is not None
    return one.process.pid


def test_a_rank_answers_and_says_who_it_is(start: Start) -> None:
    """ping gives node, pid and memory; the rank lives in a process of its own with one thread for OpenMP."""
    one = start("mac1")
    answer = one.call("ping", {}, 5.0)

    assert answer["node"] == "mac1" and answer["pid"] == pid_of(one) != os.getpid()
    assert answer["maxrss_kib"] > 1000
    assert one.call("python", {"code": "import os; result = os.environ['OMP_NUM_THREADS']"}, 5.0) == "1"


def test_errors_of_the_rank_arrive_as_they_are(start: Start) -> None:
    """Class, facts and words cross the socket; what is not ours becomes a ClusterError with its place."""
    one = start()
    with pytest.raises(UsageError, match="knows the verb"):
        one.call("fly", {}, 5.0)
    code = "from tbkit.errors import FabricTimeout; raise FabricTimeout('a', 'b', 'c', 'd', absent=[1, 3])"
    with pytest.raises(FabricTimeout) as caught:
        one.call("python", {"code": code}, 5.0)
    assert caught.value.facts == {"absent": [1, 3]} and str(caught.value) == "a: b (got c). d"
    with pytest.raises(ClusterError, match=r"ZeroDivisionError: .* at <string>:1"):
        one.call("python", {"code": "1 / 0"}, 5.0)
    with pytest.raises(ClusterError, match="unexpected keyword"):
        one.call("ping", {"x": 1}, 5.0)
    assert one.call("ping", {}, 5.0)["node"] == "n0"


def test_a_deadline_error_of_the_rank_itself_leaves_the_rank_alone(start: Start) -> None:
    """DeadlinePassed as an answer is an answer: the rank is not stopped for it."""
    one = start()
    pid = pid_of(one)
    code = "from tbkit.errors import DeadlinePassed; raise DeadlinePassed('a', 'b')"
    with pytest.raises(DeadlinePassed):
        one.call("python", {"code": code}, 5.0)

    assert one.call("ping", {}, 5.0)["pid"] == pid


def test_an_answer_that_cannot_travel_is_an_error_not_a_death(start: Start) -> None:
    """A verb that gives an object of no plain type is told so; the rank goes on."""
    one = start()
    with pytest.raises(ClusterError, match="does not travel"):
        one.call("python", {"code": "result = object()"}, 5.0)

    assert one.call("ping", {}, 5.0)["node"] == "n0"


def test_output_of_a_rank_is_passed_on(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """What a verb streams is printed in order before its answer."""
    one = start()
    one.call("python", {"code": "for word in ('Par', 'is'): body.stream(word)"}, 5.0)

    assert capsys.readouterr().out == "Paris"


def test_a_killed_rank_names_node_signal_and_last_operation(start: Start, name: str) -> None:
    """SIGKILL in the middle of a collective: RankDied in under 2 s with what it was doing."""
    one = start("mac2")
    one.observe(name, 0, 2, True)
    timer = later(0.4, signal.SIGKILL, pid_of(one))
    begun = time.monotonic()
    with pytest.raises(RankDied) as caught:
        one.call("join", LONE_JOIN | {"name": name, "world": True}, 20.0)
    timer.join()

    assert time.monotonic() - begun < 0.4 + 2.0
    assert "mac2" in str(caught.value) and "SIGKILL" in str(caught.value)
    assert caught.value.facts == {"node": "mac2", "exit_code": -9}
    with pytest.raises(RankDied):
        one.call("ping", {}, 5.0)
    assert not one.alive()


def test_a_death_names_the_last_collective(start: Start, name: str) -> None:
    """The rank that dies inside an all-reduce leaves the operation's name and number in the error."""
    pair = [start("mac1"), start("mac2")]
    shared = LONE_JOIN | {"name": name}
    for rank, one in enumerate(pair):
        one.observe(name, rank, 2, False)
    other = threading.Thread(target=pair[1].call, args=("join", shared | {"rank": 1}, 20.0))
    other.start()
    pair[0].call("join", shared, 20.0)
    other.join(20.0)
    timer = later(0.3, signal.SIGKILL, pid_of(pair[0]))
    with pytest.raises(RankDied, match=r"all_reduce number \d+, waiting"):
        pair[0].call("python", {"code": "import numpy as np; body.group.all_reduce(np.ones(4))"}, 20.0)
    timer.join()


def test_an_exit_is_told_by_its_code(start: Start) -> None:
    """A rank that ends by itself is RankDied with its exit code."""
    with pytest.raises(RankDied, match="exit code 3"):
        start().call("python", {"code": "import os; os._exit(3)"}, 5.0)


def test_a_frozen_rank_is_found_by_its_heartbeat(start: Start, ends: Ends, monkeypatch: Any) -> None:
    """SIGSTOP: DeadlinePassed that says so at the heartbeat's limit, long before the call's; the rank is ended."""
    monkeypatch.setattr(module, "FROZEN_AFTER_S", 1.0)
    one = start()
    pid = pid_of(one)
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(DeadlinePassed, match="alive") as caught:
        one.call("ping", {}, 60.0)

    assert time.monotonic() - begun < 3.0
    assert caught.value.facts["frozen"] and not one.alive()
    assert ends(pid, 1.0)


def test_a_long_hold_of_the_interpreter_is_no_death(start: Start, monkeypatch: Any) -> None:
    """Heartbeats come from a thread that needs no GIL."""
    monkeypatch.setattr(module, "FROZEN_AFTER_S", 0.8)
    held = "import re, time\nbegun = time.monotonic()\n"
    held += "while time.monotonic() - begun < 1.5: re.match('(a+)+b', 'a' * 21)\nresult = 1"

    assert start().call("python", {"code": held}, 20.0) == 1


def test_a_call_ends_at_its_deadline_and_the_rank_stays(start: Start) -> None:
    """The rank's command is stopped, its late answer is not taken for the next call's."""
    one = start()
    pid = pid_of(one)
    begun = time.monotonic()
    with pytest.raises(DeadlinePassed, match=r"nothing after 0\.3 s"):
        one.call("python", {"code": SPIN}, 0.3)

    assert time.monotonic() - begun < 1.5
    assert one.call("ping", {}, 5.0)["pid"] == pid


@pytest.mark.parametrize("code", [SPIN, "body.do_join(name, 0, 2, 20.0, 'auto', True)"])
def test_ctrl_c_stops_the_command_and_the_rank_stays(start: Start, name: str, code: str) -> None:
    """KeyboardInterrupt in the caller: Interrupted at once, in Python code and in a fabric wait alike."""
    one = start()
    one.observe(name, 0, 2, True)
    pid = pid_of(one)
    timer = later(0.3, signal.SIGINT, os.getpid())
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        one.call("python", {"code": code, "values": {"name": name}}, 25.0)
    timer.join()

    assert time.monotonic() - begun < 1.5
    assert one.call("ping", {}, 5.0)["pid"] == pid


def test_an_interrupt_between_commands_is_nothing(start: Start) -> None:
    """SIGINT to an idle rank changes nothing."""
    one = start()
    for _ in range(3):
        os.kill(pid_of(one), signal.SIGINT)

    assert one.call("ping", {}, 5.0)["node"] == "n0"


def test_a_rank_deaf_to_ctrl_c_is_terminated(start: Start, ends: Ends) -> None:
    """2 s after an interrupt that is not obeyed comes SIGTERM."""
    one = start()
    pid = pid_of(one)
    timer = later(0.3, signal.SIGINT, os.getpid())
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        one.call("python", {"code": DEAF.format("Exception")}, 25.0)
    timer.join()

    assert 2.0 < time.monotonic() - begun < 4.0
    assert not one.alive() and ends(pid, 1.0)


def test_a_rank_deaf_to_all_is_killed_and_that_is_said(start: Start, ends: Ends, monkeypatch: Any) -> None:
    """SIGKILL is the last resort, after SIGTERM has had its time."""
    monkeypatch.setattr(module, "STOP_GRACE_S", 0.4)
    one = start()
    pid = pid_of(one)
    with pytest.raises(DeadlinePassed):
        one.call("python", {"code": DEAF.format("BaseException")}, 0.3)
    assert ends(pid, 1.0)
    two = start()
    deaf = DEAF.format("BaseException").replace("try: ", "try: body.stream('x'); ")
    wire.send(two.sock, {"verb": "python", "args": {"code": deaf}})
    assert [wire.receive(two.sock, 5.0) for _ in range(2)] == [{"stream": "x"}] * 2, "it is in its loop"
    assert two.stop() == "SIGKILL, the last resort"


def test_a_new_rank_takes_the_place_of_a_dead_one(start: Start) -> None:
    """start after a death gives a working rank with the added environment."""
    one = start()
    pid = pid_of(one)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        one.call("ping", {}, 5.0)
    one.stop()
    one.start({"TBKIT_TEST": "yes"})

    assert one.call("python", {"code": "import os; result = os.environ['TBKIT_TEST']"}, 5.0) == "yes"
    assert pid_of(one) != pid


def test_stop_is_orderly_and_says_how(start: Start, ends: Ends) -> None:
    """SIGTERM ends an idle rank; a second stop has nothing to do."""
    one = start()
    pid = pid_of(one)

    assert one.stop() == "SIGTERM" and ends(pid, 1.0)
    assert one.stop() == "not running"


@pytest.mark.parametrize("busy", [False, True])
def test_the_death_of_the_engine_ends_the_rank(ends: Ends, busy: bool) -> None:
    """SIGKILL of the parent: the rank is gone within 2 s, idle or in the middle of a wait."""
    code = "import sys\nfrom tbkit.rank.supervisor import Supervisor\none = Supervisor('n0', {})\n"
    code += "print(one.process.pid, flush=True)\n"
    wait = dict(LONE_JOIN, name=f"tbr-{os.getpid()}-orphan", deadline_s=60.0)
    code += f"one.call('join', {wait!r}, 60.0)" if busy else "sys.stdin.read()"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    engine = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert engine.stdout is not None and engine.stdin is not None
        pid = int(engine.stdout.readline())
        engine.kill()
        engine.wait(5.0)
        assert ends(pid, 2.0)
    finally:
        engine.kill()
        engine.communicate(timeout=5.0)
        from tbkit.fabric import discard

        discard(wait["name"])


def test_a_rank_that_cannot_start_says_why(monkeypatch: Any) -> None:
    """A Python that fails at once is ConnectFailed that names the node, and nothing runs on."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConnectFailed, match="mac9"):
        Supervisor("mac9", {})


def test_functions_for_engines_give_plain_data(start: Start, monkeypatch: Any) -> None:
    """ask and watch never raise what is ours: ok or error, as plain data."""
    monkeypatch.setattr(module, "_supervisor", None)
    assert module.ask("ping", {}, 5.0)["error"]["type"] == "ConnectFailed"
    monkeypatch.setattr(module, "_supervisor", start())
    assert module.ask("ping", {}, 5.0)["ok"]["node"] == "n0"
    assert module.ask("fly", {}, 5.0)["error"]["type"] == "UsageError"
    seen = module.watch()["ok"]
    assert seen["alive"] and seen["engine_pid"] == os.getpid()


def test_a_rejected_buffer_is_still_a_type_error() -> None:
    """BufferRejected keeps both of its bases across the socket."""
    assert issubclass(BufferRejected, TypeError)
