"""Two processes at the ends of a cable, and what processes of one machine share."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.kernels_c.mock.programs import (
    DEADLINE_S,
    Asker,
    Folder,
    Pair,
    finish,
    folders_of,
    run,
    settings,
    start,
)

pytestmark = pytest.mark.slow

WORKS = "query_port 0 alloc_pd 0 poll 0"
WEDGED = "query_port EIO alloc_pd EIO poll -1"


@pytest.mark.parametrize("rules", ["", "ring=8192"])
def test_ten_thousand_messages_arrive_intact(pair: Callable[..., Pair], rules: str) -> None:
    """10⁴ messages each way of 1 B to 64 KiB, in order, every byte compared, completions in the order posted."""
    count = 10000 if not rules else 1000

    for code, lines, err in pair(f"check {count} 65536", rules).answers():
        assert (code, lines) == (0, [f"intact {count}"]), err


def test_large_messages_stream_between_processes(pair: Callable[..., Pair]) -> None:
    """Messages of a mebibyte pass a wire that holds one of them; the receiver states a rate."""
    receiver = [lines for code, lines, err in pair("stream 200 1048576").answers() if lines and code == 0]

    assert len(receiver) == 1
    assert float(receiver[0][0].split()[1]) > 0


def test_the_wire_is_clean_under_thread_sanitizer(pair: Callable[..., Pair]) -> None:
    """Caller and pump thread share a context without a race."""
    for code, lines, err in pair("check 500 65536", sanitizers="thread").answers():
        assert (code, lines) == (0, ["intact 500"]), err


def test_a_killed_peer_is_silence(pair: Callable[..., Pair]) -> None:
    """kill -9 of one end: the other polls on, finds nothing and gets no event."""
    two = pair("quiet 1 4096")
    outs = [end.stdout for end in two.ends]
    assert [out.readline() for out in outs if out] == ["polling\n", "polling\n"]
    two.ends[0].kill()
    two.ends[0].wait(DEADLINE_S)

    assert outs[1]
    assert [outs[1].readline() for _ in range(4)] == ["nothing\n"] * 4
    assert two.ends[1].poll() is None


def test_a_frozen_peer_goes_on_where_it_was(pair: Callable[..., Pair]) -> None:
    """SIGSTOP and SIGCONT lose nothing."""
    two = pair("check 3000 65536")
    time.sleep(0.5)
    two.ends[0].send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    two.ends[0].send_signal(signal.SIGCONT)

    for code, lines, err in two.answers():
        assert (code, lines) == (0, ["intact 3000"]), err


def test_a_pulled_cable_is_a_crash_at_both_ends(pair: Callable[..., Pair]) -> None:
    """One end's fault takes the cable out; both get a SIGSEGV when they post."""
    two = pair("post 1 4096", fault="pull@post_recv:3")

    assert [code for code, _, _ in two.answers()] == [-signal.SIGSEGV] * 2


@pytest.mark.parametrize(
    ("rules", "holders", "left"),
    [("", "alive", 4), ("", "killed", 10), ("leak=on", "killed", 4)],
)
def test_limits_are_of_the_device_and_not_of_the_process(
    built: Folder, namespace: str, ask: Asker, rules: str, holders: str, left: int
) -> None:
    """What another process of the machine holds is missing here; after its kill it comes back, unless it leaks."""
    env = settings(built(), namespace, rules=rules)
    keeper, holder = (start(built(), "objects", ["hold", n], env) for n in ("0", "6"))
    try:
        assert [p.stdout.readline() for p in (keeper, holder) if p.stdout] == ["holding\n"] * 2
        if holders == "killed":
            finish(holder)
        assert ask("objects", "make qp 40 1", rules)[1] == [f"made {left} EBUSY"]
    finally:
        finish(keeper)
        finish(holder)


def test_a_wedged_device_is_healed_by_a_reboot(ask: Asker) -> None:
    """When the last process of the namespace has ended, the device is as new."""
    assert ask("objects", "connect 2 4096 0 3 peer")[1][-1] == WEDGED
    assert ask("objects", "connect -1 4096 0 1 peer")[1][-1] == WORKS


def test_a_killed_namespace_leaves_nothing_behind(built: Folder, namespace: str) -> None:
    """What a kill left in shared memory is taken away by the next process of any namespace; the living one stays."""
    other = settings(built(), f"{namespace}x")
    killed, alive = (
        start(built(), "objects", ["hold", "3"], env) for env in (settings(built(), namespace), other)
    )
    try:
        assert [p.stdout.readline() for p in (killed, alive) if p.stdout] == ["holding\n"] * 2
        finish(killed)
        assert len(folders_of(namespace)) == 1
        third = settings(built(), f"{namespace}y")
        assert run(built(), "objects", ["make", "qp", "40", "1"], third)[1] == ["made 10 EBUSY"]
        assert folders_of(namespace) == []
        assert run(built(), "objects", ["make", "qp", "40", "1"], other)[1] == ["made 7 EBUSY"]
    finally:
        finish(killed)
        finish(alive)
        run(built(), "objects", ["devices"], settings(built(), namespace))


def test_namespaces_do_not_meet(built: Folder, namespace: str, ask: Asker) -> None:
    """Another namespace's queue pairs are not counted here."""
    holder = start(built(), "objects", ["hold", "6"], settings(built(), namespace))
    other = settings(built(), f"{namespace}x")
    try:
        assert holder.stdout and holder.stdout.readline() == "holding\n"
        assert run(built(), "objects", ["make", "qp", "40", "1"], other)[1] == ["made 10 EBUSY"]
        assert ask("objects", "make qp 40 1")[1] == ["made 4 EBUSY"]
    finally:
        finish(holder)


def test_other_cables_in_one_namespace_are_refused(built: Folder, namespace: str, ask: Asker) -> None:
    """Two processes that disagree on the cabling are told so, before any message goes astray."""
    holder = start(built(), "objects", ["hold", "1"], settings(built(), namespace))
    try:
        assert holder.stdout and holder.stdout.readline() == "holding\n"
        _, lines, err = ask("objects", "devices", cabling="cables=m:rdma_en2-m:rdma_en4")
    finally:
        finish(holder)

    assert lines == ["devices 0 EINVAL"]
    assert "have other cables" in err
