"""The verbs provider: its rules as pure functions, and both ends of a cable over the mock librdma.

``verbs_pair`` plays two machines as two processes. Each Apple rule of the mock is either survived, with what was
done about it in the port's log, or reported in one line that names device, peer, step, errno and remedy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels_c"
ROOMS = [KERNELS / room for room in ("wait", "channel", "wire", "verbs", "collective", "process")]
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing"]
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
WRAPPED = ["-DTB_WRAPPED", "-Wl,--wrap=posix_memalign,--wrap=free"] if sys.platform == "linux" else []
DEADLINE_S = 100.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C compiler"),
]

Pair = Callable[..., list[str]]


def build(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [COMPILER, *FLAGS, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr[-4000:]}"


def sources() -> list[str]:
    provider = sorted((KERNELS / "verbs").glob("*.c"))
    return [*map(str, provider), str(KERNELS / "wire/wire.c"), str(KERNELS / "wire/crc32c.c")]


def program(name: str, options: list[str], folder: Path) -> None:
    includes = [f"-I{room}" for room in ROOMS]
    build(
        [*options, *includes, f"-I{HERE}", str(HERE / f"{name}.c"), *sources(), "-o", name, "-ldl", "-lm"],
        folder,
    )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the mock and the pair, sanitized and fast; left out without the header."""
    folder = tmp_path_factory.mktemp("verbs")
    probe = [COMPILER, "-E", "-include", "infiniband/verbs.h", "-x", "c", os.devnull]
    if subprocess.run(probe, capture_output=True, timeout=60).returncode != 0:
        reason = "no <infiniband/verbs.h> for the C compiler (Debian: apt-get install libibverbs-dev)"
        if os.environ.get("STRICT", "") not in ("", "0"):
            pytest.fail(f"STRICT: {reason}")
        pytest.skip(reason)
    mock = [str(path) for path in sorted((KERNELS / "mock").glob("*.c"))]
    build(
        ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", *mock, "-o", "libtbmock.so", "-lpthread"], folder
    )
    program("verbs_pair", [*SANITIZED, *WRAPPED], folder)
    (folder / "verbs_pair").rename(folder / "sanitized")
    program("verbs_pair", ["-O2"], folder)
    program("verbs_devices", SANITIZED, folder)
    return folder


@pytest.fixture
def pair(built: Path) -> Pair:
    """Runs the pair: rules of the mock, then key=value; its lines. A rank that crashes or lies fails the test."""

    def run(
        *options: str, rules: str = "", fast: bool = False, exit_code: int = 0, **settings: str
    ) -> list[str]:
        env = (
            os.environ | {"TBKIT_LIBRDMA": str(built / "libtbmock.so"), "TBKIT_MOCK_RULES": rules} | settings
        )
        command = [str(built / ("verbs_pair" if fast else "sanitized")), *options]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == exit_code, f"{options} {rules}\n{done.stdout}{done.stderr[-4000:]}"
        return done.stdout.splitlines()

    return run


def line(lines: list[str], rank: int, kind: str) -> str:
    """The one line of that rank and kind."""
    found = [text for text in lines if text.startswith(f"{rank} {kind} ")]
    assert len(found) == 1, lines
    return found[0]


def both_ok(lines: list[str], at_least: int) -> None:
    """Both ranks took that many frames and closed with nothing outstanding."""
    for rank in (0, 1):
        found = re.fullmatch(rf"{rank} ok (\d+), closed with 0", line(lines, rank, "ok"))
        assert found and int(found[1]) >= at_least, lines


def test_rules_hold_without_any_device(tmp_path: Path) -> None:
    """Classes give equal frame counts, credits neither lose nor stall with rings from the smallest on, the GID rule
    and the failure table stand."""
    program("test_verbs_rules", SANITIZED, tmp_path)
    subprocess.run([str(tmp_path / "test_verbs_rules")], check=True, timeout=DEADLINE_S)


def test_without_the_header_open_says_what_to_install(tmp_path: Path) -> None:
    """The provider builds where <infiniband/verbs.h> is missing, and its error names the package."""
    program_text = """
        #include <stdio.h>
        #include "verbs.h"
        int main(void) {
            tb_verbs_port *port;
            tb_verbs_error error;
            tb_verbs_ask ask = {.device = "rdma_en2", .peer = 1};
            int step = tb_verbs_open(&port, &ask, &error);
            puts(error.words);
            return step == TB_VERBS_LOAD && port == NULL ? 0 : 1;
        }"""
    (tmp_path / "absent.c").write_text(program_text)
    (tmp_path / "without.h").write_text("#define TB_WITHOUT_VERBS 1\n")
    includes = [f"-I{room}" for room in ROOMS]
    build(["-include", "without.h", *includes, "absent.c", *sources(), "-o", "absent"], tmp_path)
    done = subprocess.run([str(tmp_path / "absent")], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0
    package = "libibverbs-dev" if sys.platform == "linux" else "macOS 26.2"
    assert "rdma_en2 to rank 1: load library: " in done.stdout and package in done.stdout


@pytest.mark.parametrize("rules", ["preset=apple", "preset=soft_roce"])
def test_messages_both_ways_at_once_arrive_whole(pair: Pair, rules: str) -> None:
    """10^5 messages, log-uniform from 1 B to 64 KiB, each way at the same time: none lost, every byte right."""
    both_ok(pair("mode=both", "count=100000", "most=65536", rules=rules, fast=True), at_least=100000)


@pytest.mark.parametrize(
    "rules", ["preset=apple", "preset=soft_roce", "recv_depth=5", "depth=36", "recv_depth=13"]
)
@pytest.mark.parametrize("slots", ["1", "3"])
def test_bursts_over_the_smallest_rings_end(pair: Pair, rules: str, slots: str) -> None:
    """One-sided bursts and bursts both ways: credit return never stalls, and where unmatched messages are dropped
    none is, because none is sent."""
    for seed in (1, 2):
        both_ok(pair("mode=bursts", "count=40", f"slots={slots}", f"seed={seed}", rules=rules), at_least=200)


SURVIVED = {
    "mr_flags=local": "",
    "mr_flags=all": "send ring not registered with LOCAL_WRITE alone (EINVAL), but with all flags",
    "init_access=zero": "",
    "init_access=all": "large INIT refused access 0, took all flags",
    "mtu=1024": "RTR refused the port's MTU, took 1024",
    "mtu=4096": "MTU with the peer 4096",
    "gids=apple": "GID 1 ::ffff:169.254.9.",
    "gids=ipv4_at_2": "GID 2 ::ffff:169.254.9.",
    "gids=uuid": "GID 2 ::ffff:169.254.9.",
    "depth=40": "large asked 16 slots of 16 frames, has 2 to send and 2 to receive",
    "recv_depth=30": "small took 30 receives, then ENOMEM (12)",
    "port_frames=100": "large took 2 receives, then ENOMEM (12)",
    "recv_depth=10": "large took 0 receives, then ENOMEM (12)",
    "max_qp=3": "max_qp 3",
    "queue_frames=100": "large asked 6 slots of 16 frames",
    "late_mr=unmapped,early_recv=refuse,inline=0,max_sge=1,opcodes=send,qp_types=uc,frames=on": "",
}


@pytest.mark.parametrize("rules", SURVIVED)
def test_a_rule_is_survived_and_the_log_says_how(pair: Pair, rules: str) -> None:
    """Messages of all lengths arrive under the rule; what was done about it stands in the log of both ends."""
    lines = pair("mode=both", "count=400", rules=rules)
    both_ok(lines, at_least=400)
    for rank in (0, 1):
        assert SURVIVED[rules] in line(lines, rank, "log")


REPORTED = [  # rules, faults of rank 0, further options, step, errno name or "", words, row
    ("gids=fe80", "", "", "choose GID", "", "see `ifconfig en2`", "11, 32"),
    ("gids=several", "", "", "choose GID", "", "[1] ::ffff:10.99.0.1, [3] ::ffff:169.254.9.1", "11, 32"),
    ("", "", "device0=rdma_en9", "open device", "ENODEV", "there is rdma_en5, rdma_en2", "31"),
    ("", "", "device0=rdma_en5", "query port", "", "port 1 is DOWN, not ACTIVE", "6-8"),
    ("", "down=rdma_en2", "", "query port", "", "port 1 is DOWN", "6-8"),
    ("max_pd=0", "", "", "allocate PD", "ENOMEM", "port down, or 11 in use", "9, 10"),
    ("", "error=12@alloc_pd", "", "allocate PD", "ENOMEM", "reboot", "9, 10"),
    ("max_cq=0", "", "", "create CQ", "ENOMEM", "limit of the device", "10"),
    ("max_qp=1", "", "", "create QP", "EBUSY", "all queue pairs of the device in use", "18"),
    ("", "error=102@create_qp", "", "create QP", "EOPNOTSUPP", "refuses UC", "19"),
    ("", "error=22@init", "", "INIT", "EINVAL", "refused", "18"),
    ("depth=3", "", "", "queue depth", "", "room for 3 frames, at least 5", "21"),
    ("max_mr=1", "", "", "register memory", "ENOMEM", "100 regions a device", "20"),
    ("max_mr_size=65536", "", "", "register memory", "EINVAL", "a region at most 65536", "20"),
    ("", "error=22@reg_mr", "", "register memory", "EINVAL", "100 regions", "20"),
    ("", "error=22@rtr", "", "RTR", "EINVAL", "crossed cabling", "11-15"),
    ("", "error=60@rtr", "", "RTR", "ETIMEDOUT", "ping it from this interface", "16"),
    ("", "error=96@rtr", "", "RTR", "ENODATA", "idle too long", "17"),
    ("", "error=16@rtr", "", "RTR", "EBUSY", "stale", "18"),
    ("", "error=22@rtr:1", "", "ready", "", "the peer's RTR took MTU 4096, ours 1024", "54"),
    ("", "error=22@rts", "", "RTS", "EINVAL", "refused", "17, 18"),
    ("recv_depth=4", "", "", "post receives", "ENOMEM", "4 receives taken, at least 5", "21"),
    ("", "", "slots=5000", "queue depth", "EINVAL", "5000 slots of 16 frames on port 1 cannot be", "21"),
    ("nonsense=1", "", "", "list devices", "EINVAL", "no RDMA device", "1, 2"),
]


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: "|".join(case[:3]))
def test_a_failure_is_one_line_with_device_peer_step_errno_and_remedy(
    pair: Pair, case: tuple[str, str, str, str, str, str, str]
) -> None:
    """What cannot be survived is said by the rank that meets it, with the failure table's row; nothing leaks."""
    rules, faults, more, step, errno_name, words, row = case
    lines = pair("mode=both", f"faults0={faults}", *([more] if more else []), rules=rules)
    said = line(lines, 0, "error")
    device = more.removeprefix("device0=") if more.startswith("device0=") else "rdma_en2"
    assert re.fullmatch(rf"0 error \d+ \d+ {device} to rank 1: {step}: .+; .+ \[failure {row}\]", said), said
    assert words in said
    if errno_name:
        assert re.search(rf": {errno_name} \(\d+\): ", said), said
    assert not any(" ok " in text for text in lines)


def test_the_address_of_the_cable_picks_its_gid(pair: Pair) -> None:
    """Of several IPv4-mapped GIDs the one that the bootstrap socket uses is taken, at its own index."""
    lines = pair("mode=open", "address0=169.254.9.1", rules="gids=several")
    assert "GID 3 ::ffff:169.254.9.1" in line(lines, 0, "log")
    assert "is not known" in line(lines, 1, "error")


@pytest.mark.parametrize(
    ("frames", "window"), [(("1", "16"), 0), (("1", "1"), 0), (("16", "32"), 16), (("9", "17"), 16)]
)
def test_ends_that_ask_different_slots_agree_on_the_smaller(
    pair: Pair, frames: tuple[str, str], window: int
) -> None:
    """A node of macOS 26.2 has 4 KiB slots alone; its peer then uses no others, and both still exchange all lengths."""
    lines = pair("mode=both", "count=500", f"frames0={frames[0]}", f"frames1={frames[1]}")
    both_ok(lines, at_least=500)
    for rank in (0, 1):
        assert f"ahead by 64 small, {window} large out; 64, {window} in" in line(lines, rank, "log")


BROKEN = [  # faults of rank 0, rank that finds it, what was found, what was wanted
    ("lose@post_send:50", 1, r"after sequence \d+", r"\d+ bytes of sequence \d+"),
    ("lose@post_send:30", 1, r"magic 0x\w+, .*after sequence 23", "magic 0x7b1c"),
    ("corrupt@post_send:50", 1, r"sequence \d+, \d+ bytes, whose CRC-32C is 0x\w+", r"CRC-32C 0x\w+"),
    ("error=5@poll_cq:300", 0, r"poll_cq gave EIO \(5\)", "success"),
    ("error=12@post_send:100", 0, r"post_send gave ENOMEM \(12\)", "success"),
    ("error=12@post_recv:200", 0, r"post_recv gave ENOMEM \(12\)", "success"),
]


@pytest.mark.parametrize(("faults", "rank", "got", "wanted"), BROKEN, ids=lambda value: str(value)[:25])
def test_a_fault_in_traffic_breaks_the_channel_with_node_and_cable(
    pair: Pair, faults: str, rank: int, got: str, wanted: str
) -> None:
    """Nothing lost or damaged is passed on or sent again: the next progress fails and names cable, sequence, rule."""
    lines = pair("mode=both", "count=2000", f"faults0={faults}")
    cable = ("rdma_en2 to rank 1", "rdma_en3 to rank 0")[rank]
    assert re.fullmatch(rf"{rank} fault {cable}: .*{got}.* \| .*{wanted}.*", line(lines, rank, "fault"))
    assert not any(" fault " in text for text in lines if text[0] != str(rank))


def test_a_lost_single_message_shows_at_the_next_of_its_queue_pair(pair: Pair) -> None:
    """Of frames that are one message each, the gap in the numbering is found, not waited for."""
    lines = pair("mode=both", "count=2000", "most=4000", "faults0=lose@post_send:100")
    assert re.search(r"frame of the small queue pair \d+, sequence \d+ \| frame \d+", line(lines, 1, "fault"))


def test_peer_death_is_silence_and_close_is_bounded(pair: Pair) -> None:
    """No event tells of a dead peer: nothing arrives, nothing fails, and the port still closes in order."""
    lines = pair("mode=die", "count=2000", rules="preset=apple")
    assert "0 silence" in lines and line(lines, 0, "ok").startswith("0 ok 0, closed with ")


@pytest.mark.skipif(sys.platform != "linux", reason="the linker's --wrap places the allocations")
def test_no_region_lies_across_a_4_gib_boundary(pair: Pair) -> None:
    """Two allocations that cross one are given up for a third; the rule under which data would alias is on."""
    both_ok(pair("mode=both", "count=400", "cross=2", rules="alias=on"), at_least=400)


DEVICES = {  # TBKIT_MOCK_RULES, TBKIT_MOCK_FAULTS: exit code, lines
    ("gids=several", ""): (
        0,
        [
            "rdma_en5 DOWN error 0 lid 2 mtu 4096 max_qp 11 gids 3: "
            "[0] fe80::ab:cdff:fe00:2 [1] ::ffff:10.99.2.1 [3] ::ffff:169.254.103.1",
            "rdma_en2 ACTIVE error 0 lid 1 mtu 4096 max_qp 11 gids 3: "
            "[0] fe80::ab:cdff:fe00:0 [1] ::ffff:10.99.0.1 [3] ::ffff:169.254.1.1",
        ],
    ),
    ("", "error=5@open_device:1"): (
        0,
        [
            "rdma_en5 unknown error 5 lid 0 mtu 0 max_qp 0 gids 0:",
            "rdma_en2 ACTIVE error 0 lid 1 mtu 4096 max_qp 11 gids 3: "
            "[0] fe80::ab:cdff:fe00:0 [1] ::ffff:169.254.1.1 [2] fe80::8a1:3c55:90d2:7700",
        ],
    ),
    ("", "error=22@get_device_list"): (
        1,
        [
            "list devices: EINVAL (22): no RDMA device; `rdma_ctl enable` in Recovery, reboot; "
            "on Linux `rdma link` [failure 1, 2]"
        ],
    ),
}


@pytest.mark.parametrize("settings", DEVICES, ids="|".join)
def test_devices_are_listed_with_port_state_and_gids(built: Path, settings: tuple[str, str]) -> None:
    """Each device with its port's state and every GID that is not zero; one that does not open with its errno."""
    env = os.environ | {
        "TBKIT_LIBRDMA": str(built / "libtbmock.so"),
        "TBKIT_MOCK": f"namespace=vd{os.getpid()}; node=m; cables=m:rdma_en2-n:rdma_en3; devices=m:rdma_en5",
        "TBKIT_MOCK_RULES": settings[0],
        "TBKIT_MOCK_FAULTS": settings[1],
    }
    done = subprocess.run([str(built / "verbs_devices")], env=env, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout.splitlines()) == DEVICES[settings], done.stderr


def test_a_library_that_is_not_there_is_named(pair: Pair) -> None:
    """TBKIT_LIBRDMA with a wrong path: one line that names it, no search elsewhere."""
    lines = pair("mode=open", TBKIT_LIBRDMA="/nowhere/librdma.so")
    assert "rdma_en2 to rank 1: load library: /nowhere/librdma.so" in line(lines, 0, "error")
