"""A dead, stopped, late or damaged peer gives a typed error that names it, in time; never a hang or a
leftover."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tbkit.errors import CorruptFrame, FabricError, FabricTimeout, Interrupted, PeerDied

pytestmark = pytest.mark.alone
CALLS = {
    "all_reduce": "g.all_reduce(np.ones(1000, np.float32))",
    "all_gather": "g.all_gather(np.ones(100_000, np.float32))",
    "broadcast": "g.broadcast(np.ones(100_000), 2)",
    "barrier": "g.barrier()",
}
TIMED = (
    "import time\nbegan = time.monotonic()\ntry:\n    {call}\nfinally:\n    took = time.monotonic() - began"
)


def took(ranks: Any, which: list[int]) -> list[float]:
    return ranks.run("result = took", which)


@pytest.mark.parametrize("call", CALLS)
def test_a_killed_peer_is_named_at_once(victims: Any, call: str) -> None:
    """SIGKILL of one rank ends the others' collective with PeerDied, which names rank and operation, in under
    1 s."""
    victims.group(3)
    victims.start(TIMED.format(call=CALLS[call]), [0, 1], {})
    time.sleep(0.2)
    killed = time.monotonic()
    victims.ranks[2].process.send_signal(signal.SIGKILL)
    for answer in victims.collect([0, 1]):
        assert isinstance(answer, PeerDied), answer
        assert answer.facts["peer"] == 2 and answer.facts["operation"] == call
        assert answer.facts["sequence"] == 1 and answer.facts["elapsed_s"] > 0.1
    assert time.monotonic() - killed < 1.0


@pytest.mark.parametrize("policy", ["spin", "yield", "futex"])
def test_a_killed_peer_is_seen_by_every_policy(victims: Any, policy: str) -> None:
    """A rank that sleeps in the kernel learns of the death as one that spins does; a pair too."""
    victims.group(2, policy)
    victims.start("g.recv(np.zeros(4), 1)", [0], {})
    time.sleep(0.3)
    killed = time.monotonic()
    victims.ranks[1].end()
    (answer,) = victims.collect([0])
    assert isinstance(answer, PeerDied) and answer.facts["operation"] == "recv" and answer.facts["peer"] == 1
    assert time.monotonic() - killed < 1.0


def test_a_peer_that_left_is_named(victims: Any) -> None:
    """close() on one rank ends the others' wait for it; what it sent before still arrives."""
    victims.group(2)
    code = """
if rank == 0:
    g.send(np.full(3, 5.0), 1)
    g.close()
else:
    import time
    time.sleep(0.2)
    result = g.recv(np.zeros(3), 0).tolist()
"""
    assert victims.run(code, [0, 1]) == [None, [5.0] * 3]
    (answer,) = victims.run("g.recv(np.zeros(3), 0)", [1])
    assert isinstance(answer, FabricError)


def test_absent_ranks_are_named_at_the_deadline(victims: Any) -> None:
    """A collective that some ranks never call ends at its deadline and says who did not come; then the group
    is over."""
    victims.group(3)
    answers = victims.run(TIMED.format(call="g.all_reduce(np.ones(4), deadline_s=0.5)"), [0, 2])
    for answer in answers:
        assert isinstance(answer, FabricTimeout), answer
        assert answer.facts["absent"] == [1] and answer.facts["operation"] == "all_reduce"
        assert "rank 1" in str(answer)
    assert all(0.4 < seconds < 1.0 for seconds in took(victims, [0, 2]))
    for late in victims.run(TIMED.format(call="g.barrier()"), [0, 1, 2]):
        assert type(late) is FabricError and "new group" in str(late)
    assert max(took(victims, [0, 1, 2])) < 0.1
    victims.group(3, fresh=True)
    assert victims.run("result = float(g.all_reduce(np.ones(1))[0])", [0, 1, 2]) == [3.0] * 3


def test_a_stopped_peer_is_a_timeout(victims: Any) -> None:
    """SIGSTOP leaves the peer alive, so the deadline decides, and names it."""
    victims.group(2)
    victims.ranks[1].process.send_signal(signal.SIGSTOP)
    (answer,) = victims.run(TIMED.format(call="g.barrier(deadline_s=0.6)"), [0])
    assert isinstance(answer, FabricTimeout) and answer.facts["absent"] == [1]
    assert 0.5 < took(victims, [0])[0] < 1.2


def test_a_join_that_not_all_reach_names_the_missing(victims: Any, name: str) -> None:
    """The join ends at its deadline, names the absent ranks and leaves no segment."""
    code = "from tbkit.fabric import join\njoin(name, rank, 3, deadline_s=0.6)"
    for answer in victims.run(code, [0, 1], name=name):
        assert isinstance(answer, FabricTimeout) and answer.facts["absent"] == [2]
        assert answer.facts["operation"] == "join"


def test_a_corrupt_frame_names_its_sender(victims: Any) -> None:
    """A frame whose head is damaged raises CorruptFrame at its receiver, and ends the group for its sender
    too."""
    victims.group(2)
    code = """
from tbkit._kernels import testing_corrupt_next_frame
if rank == 1:
    testing_corrupt_next_frame(g)
g.all_reduce(np.ones(4)), g.barrier()
"""
    receiver, sender = victims.run(code, [0, 1])
    assert isinstance(receiver, CorruptFrame) and receiver.facts["peer"] == 1
    assert receiver.facts["operation"] == "all_reduce" and "magic" in str(receiver)
    assert isinstance(sender, FabricError)


@pytest.mark.parametrize(
    "calls",
    [
        ("g.barrier()", "g.all_reduce(np.ones(1))"),
        ("g.all_reduce(np.ones(4))", "g.all_reduce(np.ones(5))"),
        ("g.all_reduce(np.ones(4))", "g.all_reduce(np.ones(4), op='max')"),
        ("g.all_reduce(np.ones(4))", "g.all_reduce(np.ones(8, np.float32))"),
        ("g.send(np.ones(4), 1), g.barrier()", "g.recv(np.ones(5), 0)"),
    ],
)
def test_ranks_that_call_different_things_are_told(victims: Any, calls: tuple[str, str]) -> None:
    """Another operation, size, type or reduction on the other rank is found, not added up."""
    victims.group(2)
    answers = victims.run("exec(call)", [0, 1], each={"call": calls})
    assert any(isinstance(answer, CorruptFrame) for answer in answers), answers
    assert all(isinstance(answer, FabricError) for answer in answers)


def test_interrupt_ends_every_wait(victims: Any) -> None:
    """interrupt() from another thread ends the waits of all ranks with Interrupted, quickly."""
    victims.group(3)
    code = """
import threading, time
if rank == 0:
    threading.Timer(0.2, g.interrupt).start()
began = time.monotonic()
try:
    g.recv(np.ones(1), 2)
finally:
    took = time.monotonic() - began
"""
    answers = victims.run(code, [0, 1])
    assert all(isinstance(answer, Interrupted) for answer in answers), answers
    assert all(0.1 < seconds < 0.8 for seconds in took(victims, [0, 1]))


def test_ctrl_c_ends_a_wait(victims: Any) -> None:
    """SIGINT raises KeyboardInterrupt in the waiting rank, and Interrupted in its peers."""
    victims.group(2)
    code = """
try:
    g.recv(np.ones(2), 1 - rank)
except KeyboardInterrupt:
    result = "stopped"
"""
    victims.start(code, [0, 1], {})
    time.sleep(0.3)
    victims.ranks[0].process.send_signal(signal.SIGINT)
    stopped, other = victims.collect([0, 1])
    assert stopped == "stopped" and isinstance(other, Interrupted)


def test_a_crash_while_joining_leaves_no_segment(victims: Any, name: str) -> None:
    """A rank killed in the join ends the others' join with PeerDied; the name goes with them."""
    code = "from tbkit.fabric import join\njoin(name, rank, 3, deadline_s=10.0)"
    victims.run("import tbkit.fabric", [0, 1])
    victims.start(code, [0, 1], {}, name=name)
    time.sleep(0.3)
    victims.ranks[0].end()
    (answer,) = victims.collect([1])
    assert isinstance(answer, PeerDied) and answer.facts["peer"] == 0


def test_large_sends_that_nobody_reads_end_at_the_deadline(victims: Any) -> None:
    """Where both ranks of a pair send more than the channel holds, both get FabricTimeout."""
    victims.group(2)
    for answer in victims.run("g.send(np.ones(1 << 20), 1 - rank, deadline_s=0.4)", [0, 1]):
        assert isinstance(answer, FabricTimeout) and answer.facts["operation"] == "send"
