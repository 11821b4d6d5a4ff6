"""Faults fire at the moment named; what cannot be read is named."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kernels_c.mock.programs import MOCK, Asker, Folder, finish, run, settings, start

pytestmark = pytest.mark.slow

WORKS = "query_port 0 alloc_pd 0 poll 0"


@pytest.mark.parametrize(
    ("fault", "program", "question", "answer"),
    [
        ("error=22@rtr:1", "objects", "connect -1 4096 0 2 peer", ["init 0", "rtr EINVAL", "rtr 0", WORKS]),
        ("error=60@rtr", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr ETIMEDOUT", WORKS]),
        ("error=16@rtr:1", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr EBUSY", WORKS]),
        ("error=96@rtr:1", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr ENODATA", WORKS]),
        ("error=EINVAL@rtr:2+", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr 0", WORKS]),
        ("error=EBUSY@create_qp:4", "objects", "make qp 40 1", ["made 3 EBUSY"]),
        ("error=ENOMEM@reg_mr:5+", "objects", "make mr 40 1", ["made 4 ENOMEM"]),
        ("error=12@post_recv:8", "objects", "receives 4096 100 rts", ["receives 7 ENOMEM"]),
        ("error=EIO@get_device_list", "objects", "devices", ["devices 0 EIO"]),
        ("lose@post_send:3", "messages", "messages 8", ["came 7 intact 7"]),
        ("corrupt@post_send:5", "messages", "messages 8", ["came 8 intact 7"]),
        ("corrupt@post_send:5, lose@post_send:3", "messages", "messages 8", ["came 7 intact 6"]),
        ("", "messages", "messages 8", ["came 8 intact 8"]),
    ],
)
def test_a_fault_fires_at_its_call(
    ask: Asker, fault: str, program: str, question: str, answer: list[str]
) -> None:
    """An error comes at the call and count named, and a message is lost or turned at its own."""
    code, lines, err = ask(program, question, faults=fault)

    assert (code, lines) == (0, answer), err


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("pull=rdma_en2", -signal.SIGSEGV),
        ("pull", -signal.SIGSEGV),
        ("crash@poll_cq:5000", -signal.SIGSEGV),
        ("kill@post_send:500", -signal.SIGKILL),
    ],
)
def test_a_fault_ends_the_process_that_meets_it(ask: Asker, fault: str, code: int) -> None:
    """A pulled cable is a SIGSEGV of the next post; a crash or a kill comes at its call."""
    got, lines, err = ask("messages", f"traffic 300 {fault}")

    assert (got, lines[:1]) == (code, ["running 0"]), err


def test_a_port_goes_down(ask: Asker) -> None:
    """On a port that is down no domain is to be had and nothing moves."""
    _, lines, err = ask("messages", "down down=rdma_en2")

    assert lines == ["state ACTIVE", "state DOWN alloc_pd ENXIO", "recv nothing"], err


@pytest.mark.parametrize(
    ("fault", "before"), [("hang@rtr", []), ("hang@post_recv:100", ["running 0\n"]), ("hang@file:FILE", None)]
)
def test_a_call_never_returns(
    built: Folder, namespace: str, fault: str, before: list[str] | None, tmp_path: Path
) -> None:
    """A call that hangs goes on hanging; a fault with a file waits until the file is there.

    A program that does not hang writes some ten lines a second.
    """
    env = settings(built(), namespace, faults=fault.replace("FILE", str(tmp_path / "trigger")))
    process = start(built(), "messages", ["traffic", "-1", "none"], env)
    try:
        if before is None:
            assert (
                [process.stdout.readline() for _ in range(3)][-1] == "running 2000\n"
                if process.stdout
                else False
            )
            (tmp_path / "trigger").touch()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
    finally:
        after = finish(process)[0].splitlines(keepends=True)

    assert after == before if before is not None else len(after) < 5


@pytest.mark.parametrize(
    ("setting", "text", "word"),
    [
        ("TBKIT_MOCK", "cables=m:rdma_en2-m:rdma_en3", "no node"),
        ("TBKIT_MOCK", "node=m; cables=m:rdma_en2", "not a cable"),
        ("TBKIT_MOCK", "node=m; cables=m:rdma_en2-b:x,m:rdma_en2-c:y", "has a cable already"),
        ("TBKIT_MOCK", "node=m; cables=m:rdma_en2/1.2.3-b:x", "not an IPv4 address"),
        ("TBKIT_MOCK", "node=m; colour=blue", "no such field"),
        ("TBKIT_MOCK", "node=m; file=/nowhere/at/all", "not a readable file"),
        ("TBKIT_MOCK_RULES", "max_qps=3", "no such rule"),
        ("TBKIT_MOCK_RULES", "credits=lend", "no such value"),
        ("TBKIT_MOCK_RULES", "max_qp=many", "a number or off"),
        ("TBKIT_MOCK_RULES", "ring=100", "out of range"),
        ("TBKIT_MOCK_RULES", "preset=linux", "no such preset"),
        ("TBKIT_MOCK_FAULTS", "explode", "not a fault"),
        ("TBKIT_MOCK_FAULTS", "error=22", "not a fault"),
        ("TBKIT_MOCK_FAULTS", "hang@rtr:0", "not a fault"),
        ("TBKIT_MOCK_FAULTS", "pull=rdma_en9", "not a fault"),
    ],
)
def test_a_word_that_it_does_not_know_is_named(
    built: Folder, namespace: str, setting: str, text: str, word: str
) -> None:
    """One line names the variable, what is wrong and what was got; no device is listed."""
    if setting == "TBKIT_MOCK":
        text = f"namespace={namespace}; {text}"
    code, lines, err = run(built(), "objects", ["devices"], settings(built(), namespace) | {setting: text})

    assert (code, lines) == (0, ["devices 0 EINVAL"])
    assert err.count("\n") == 1
    assert err.startswith(f"tbmock: {setting}: ")
    assert word in err


def test_no_fault_goes_untested() -> None:
    """Every kind of the table in mock_fault.c fires in some test of this file."""
    kinds = re.search(r"KIND_NAMES\[KINDS\] = \{(.*?)\}", (MOCK / "mock_fault.c").read_text(), re.S)
    names = re.findall(r'"(\w+)"', kinds[1]) if kinds else []
    own = Path(__file__).read_text()

    assert len(names) == 8
    assert [name for name in names if not re.search(rf'["\s]{name}[=@"]', own)] == []
