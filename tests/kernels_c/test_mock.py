"""The mock librdma, asked as a verbs user asks librdma: every rule with it and without it, every fault, two processes.

The programs of ``mock/`` are built with sanitizers against the machine's own <infiniband/verbs.h> and answer in
lines of words; what the lines must be stands here. Numbers of completion status are those of the header: 0
success, 1 local length, 4 local protection, 5 flushed, 9 remote invalid request.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOCK = HERE.parents[1] / "kernels_c" / "mock"
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
PROGRAMS = ("objects", "messages", "pair")
CABLE = "cables=m:rdma_en2-m:rdma_en3"
DEADLINE_S = 60.0
pytestmark = pytest.mark.slow

Answer = tuple[int, list[str], str]  # exit code, lines, standard error
Asker = Callable[..., Answer]


def has_header() -> bool:
    """True where a C compiler finds <infiniband/verbs.h>."""
    if shutil.which(COMPILER) is None:
        return False
    command = [COMPILER, "-E", "-include", "infiniband/verbs.h", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def compiled(folder: Path, sanitizers: str) -> Path:
    """The library and the programs in that folder."""
    options = [*FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    sources = [str(path) for path in sorted(MOCK.glob("*.c"))]
    commands = [
        [*options, "-fPIC", "-shared", "-fvisibility=hidden", *sources, "-o", "libtbmock.so", "-lpthread"]
    ]
    for name in PROGRAMS:
        commands.append([*options, f"-I{HERE}", str(HERE / f"mock/{name}.c"), "-o", name, "-ldl", "-lm"])
    for command in commands:
        done = subprocess.run([COMPILER, *command], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with library and programs under some sanitizers, made once; left out without the header."""
    folders: dict[str, Path] = {}
    if not has_header():
        reason = "no <infiniband/verbs.h> for the C compiler (Debian: apt-get install libibverbs-dev)"
        if os.environ.get("STRICT"):
            pytest.fail(f"STRICT: {reason}")
        pytest.skip(reason=reason)

    def folder(sanitizers: str = "address,undefined") -> Path:
        if sanitizers not in folders:
            folders[sanitizers] = compiled(tmp_path_factory.mktemp("mock"), sanitizers)
        return folders[sanitizers]

    return folder


@pytest.fixture
def namespace(built: Callable[[str], Path]) -> Iterator[str]:
    """A namespace of this test alone; one more process enters and leaves it, which clears what a kill left."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    if sys.platform != "linux" or folders_of(name):
        run(built(), "objects", ["devices"], settings(built(), name))
        assert folders_of(name) == []


def folders_of(name: str) -> list[Path]:
    """What a namespace has in shared memory (Linux)."""
    return list(Path("/dev/shm").glob(f"tbmock-*-{name}"))


def settings(
    folder: Path, name: str, node: str = "m", cabling: str = CABLE, rules: str = "", faults: str = ""
) -> dict[str, str]:
    """The environment of a program: which mock, which machine, which rules."""
    return os.environ | {
        "TBKIT_LIBRDMA": str(folder / "libtbmock.so"),
        "TBKIT_MOCK": f"namespace={name}; node={node}; {cabling}",
        "TBKIT_MOCK_RULES": rules,
        "TBKIT_MOCK_FAULTS": faults,
        "ASAN_OPTIONS": "handle_segv=0:detect_leaks=0",  # a SIGSEGV is what some rules are about
        "TSAN_OPTIONS": "halt_on_error=1",
    }


def command_of(folder: Path, program: str, question: list[str]) -> list[str]:
    # ThreadSanitizer of older compilers cannot bear much address randomisation.
    prefix = ["setarch", "-R"] if sys.platform == "linux" and shutil.which("setarch") else []
    return [*prefix, str(folder / program), *question]


def run(folder: Path, program: str, question: list[str], env: dict[str, str]) -> Answer:
    done = subprocess.run(
        command_of(folder, program, question), env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture
def ask(built: Callable[[str], Path], namespace: str) -> Asker:
    """Ask one question of a program with rules and faults."""

    def asked(program: str, question: str, rules: str = "", faults: str = "", **more: str) -> Answer:
        env = settings(built(), namespace, rules=rules, faults=faults, **more)
        return run(built(), program, question.split(), env)

    return asked


WHOLE = ["send 0 4096", "recv 0 4096", "data intact", "post 0 0", "send 0 8192", "recv 0 8192"]
WORKS = "query_port 0 alloc_pd 0 poll 0"
WEDGED = "query_port EIO alloc_pd EIO poll -1"

# rule, what is set, program, question, answer
RULES: list[tuple[str, str, str, str, list[str]]] = [
    ("frames", "", "messages", "exchange 4096 8192",
     ["send 9 4096", "recv 1 0", "data other", "post 0 0", "send 5 8192", "recv 5 0"]),
    ("frames", "", "messages", "exchange 4097 8192", ["send 0 4097", "recv 0 4097", *WHOLE[2:]]),
    ("frames", "frames=off", "messages", "exchange 4096 8192", WHOLE),
    ("frames", "frames=off", "messages", "exchange 8192 4096",
     ["send 9 8192", "recv 1 0", "data other", "post 0 0", "send 5 4096", "recv 5 0"]),
    ("credits", "", "messages", "unmatched", ["before nothing", "recv 0 4096", "after 0 4096"]),
    ("credits", "credits=drop", "messages", "unmatched", ["before 0 4096", "recv nothing", "after nothing"]),
    ("port_frames", "", "objects", "budget 65536 1 4095", ["sends 255 ENOMEM"]),
    ("port_frames", "", "objects", "budget 65536 2 4095", ["sends 255 ENOMEM"]),
    ("port_frames", "port_frames=100", "objects", "budget 65536 2 4095", ["sends 6 ENOMEM"]),
    ("port_frames", "port_frames=off", "objects", "budget 65536 2 4095", ["sends 510 ENOMEM"]),
    ("queue_frames", "", "objects", "create uc 4095 1 0", ["depth 4095 4095"]),
    ("queue_frames", "", "objects", "create uc 4096 1 0", ["create EINVAL"]),
    ("queue_frames", "queue_frames=off", "objects", "create uc 8000 1 0", ["depth 8000 8000"]),
    ("queue_frames", "", "objects", "budget 8192 1 1024", ["sends 512 ENOMEM"]),
    ("depth", "depth=64", "objects", "create uc 4095 1 0", ["depth 64 64"]),
    ("depth", "depth=64", "objects", "budget 8192 1 4095", ["sends 32 ENOMEM"]),
    ("recv_depth", "", "objects", "receives 65536 4095 rts", ["receives 63 ENOMEM"]),
    ("recv_depth", "recv_depth=32", "objects", "receives 4096 4095 rts", ["receives 32 ENOMEM"]),
    ("recv_depth", "recv_depth=off", "objects", "receives 65536 4095 rts", ["receives 255 ENOMEM"]),
    ("max_qp", "", "objects", "make qp 40 2", ["made 10 EBUSY"]),
    ("max_qp", "max_qp=3", "objects", "make qp 40 2", ["made 3 EBUSY"]),
    ("max_qp", "max_qp=off", "objects", "make qp 40 2", ["made 40 0"]),
    ("max_qp_says", "", "objects", "limits",
     ["max_qp 11 max_pd 11 max_cq 11 max_mr 100 max_sge 1 max_mr_size 16384000"]),
    ("max_qp_says", "max_qp_says=10,max_mr_size=20000", "objects", "limits",
     ["max_qp 10 max_pd 11 max_cq 11 max_mr 100 max_sge 1 max_mr_size 20000"]),
    ("max_qp_says", "max_qp=3", "objects", "limits",
     ["max_qp 3 max_pd 11 max_cq 11 max_mr 100 max_sge 1 max_mr_size 16384000"]),
    ("max_pd", "", "objects", "make pd 40 1", ["made 10 ENOMEM"]),  # beside the one of its context
    ("max_pd", "", "objects", "make pd 40 2", ["made 9 ENOMEM"]),
    ("max_pd", "max_pd=off", "objects", "make pd 40 2", ["made 40 0"]),
    ("max_cq", "", "objects", "make cq 40 2", ["made 9 ENOMEM"]),
    ("max_cq", "max_cq=off", "objects", "make cq 40 2", ["made 40 0"]),
    ("max_mr", "", "objects", "make mr 150 2", ["made 100 ENOMEM"]),
    ("max_mr", "max_mr=off", "objects", "make mr 150 2", ["made 150 0"]),
    ("max_mr_size", "", "objects", "region 16384000 0 1", ["region 0"]),
    ("max_mr_size", "", "objects", "region 16384001 0 1", ["region ENOMEM"]),
    ("max_mr_size", "max_mr_size=off", "objects", "region 16384001 0 1", ["region 0"]),
    ("max_msg", "", "objects", "budget 16773121 1 4095", ["sends 0 EINVAL"]),
    ("max_msg", "max_msg=off", "objects", "budget 16773121 1 4095", ["sends 0 ENOMEM"]),  # now too many frames
    ("max_msg", "max_msg=4096", "objects", "budget 4097 1 4095", ["sends 0 EINVAL"]),
    ("page", "", "objects", "region 16384 4096 1", ["region EINVAL"]),
    ("page", "page=4096", "objects", "region 16384 4096 1", ["region 0"]),
    ("page", "page=off", "objects", "region 100 1 1", ["region 0"]),
    ("early_recv", "", "objects", "receives 4096 16 init", ["receives 0 EINVAL"]),
    ("early_recv", "", "objects", "receives 4096 16 rtr", ["receives 0 EINVAL"]),
    ("early_recv", "", "objects", "receives 4096 16 rts", ["receives 16 ENOMEM"]),
    ("early_recv", "early_recv=accept", "objects", "receives 4096 16 init", ["receives 16 ENOMEM"]),
    ("qp_types", "", "objects", "create rc 10 1 0", ["create EOPNOTSUPP"]),
    ("qp_types", "qp_types=any", "objects", "create rc 10 1 0", ["depth 10 10"]),
    ("opcodes", "", "messages", "opcode imm", ["post EOPNOTSUPP"]),
    ("opcodes", "", "messages", "opcode write", ["post EOPNOTSUPP"]),
    ("opcodes", "opcodes=any", "messages", "opcode imm", ["post 0", "recv 0 imm 77"]),
    ("opcodes", "opcodes=any", "messages", "opcode write", ["post EOPNOTSUPP"]),
    ("max_sge", "", "objects", "create uc 10 2 0", ["create EINVAL"]),
    ("max_sge", "max_sge=2", "objects", "create uc 10 2 0", ["depth 10 10"]),
    ("inline", "", "objects", "create uc 10 1 32", ["create EINVAL"]),
    ("inline", "inline=32", "objects", "create uc 10 1 32", ["depth 10 10"]),
    ("inline", "inline=32,max_sge=2", "messages", "pieces",
     ["recv 0 12", "recv 0 7", "send nothing", "data firstsecond inline"]),
    ("mr_flags", "", "objects", "region 16384 0 1", ["region 0"]),
    ("mr_flags", "", "objects", "region 16384 0 7", ["region 0"]),
    ("mr_flags", "mr_flags=local", "objects", "region 16384 0 1", ["region 0"]),
    ("mr_flags", "mr_flags=local", "objects", "region 16384 0 7", ["region EINVAL"]),
    ("mr_flags", "mr_flags=all", "objects", "region 16384 0 1", ["region EINVAL"]),
    ("mr_flags", "mr_flags=all", "objects", "region 16384 0 7", ["region 0"]),
    ("init_access", "", "objects", "connect -1 4096 7 1 peer", ["init 0", "rtr 0", WORKS]),
    ("init_access", "init_access=zero", "objects", "connect -1 4096 7 1 peer", ["init EINVAL", "rtr EINVAL", WORKS]),
    ("init_access", "init_access=zero", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("init_access", "init_access=all", "objects", "connect -1 4096 0 1 peer", ["init EINVAL", "rtr EINVAL", WORKS]),
    ("init_access", "init_access=all", "objects", "connect -1 4096 7 1 peer", ["init 0", "rtr 0", WORKS]),
    ("mtu", "", "objects", "connect -1 1024 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("mtu", "mtu=1024", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("mtu", "mtu=1024", "objects", "connect -1 1024 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("mtu", "mtu=4096", "objects", "connect -1 1024 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "", "objects", "connect 0 4096 0 1 peer", ["init 0", "rtr ETIMEDOUT", WORKS]),
    ("rtr_gid", "", "objects", "connect 2 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "", "objects", "connect 3 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),  # no such entry
    ("rtr_gid", "", "objects", "connect -1 4096 0 1 wrong", ["init 0", "rtr ETIMEDOUT", WORKS]),
    ("rtr_gid", "", "objects", "connect -1 4096 0 1 self", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "gids=fe80", "objects", "connect 1 4096 0 1 fe80", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "gids=fe80,rtr_gid=any", "objects", "connect 1 4096 0 1 fe80", ["init 0", "rtr 0", WORKS]),
    ("rtr_gid", "gids=ipv4_at_2", "objects", "connect 1 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "gids=ipv4_at_2", "objects", "connect 2 4096 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("late_mr", "", "messages", "late", ["send 0 4096", "recv 4 4096"]),
    ("late_mr", "late_mr=mapped", "messages", "late", ["send 0 4096", "recv 0 4096"]),
    ("alias", "", "messages", "alias", ["recv 0 32768", "below 77 77 above 00 00"]),
    ("alias", "alias=off", "messages", "alias", ["recv 0 32768", "below 77 77 above 77 77"]),
    ("panic", "panic=off", "messages", "dereg early", ["dereg EBUSY", "ended"]),
    ("panic", "", "messages", "dereg late", ["ended"]),
    ("wedge", "", "objects", "connect 2 4096 0 2 peer", ["init 0", "rtr EINVAL", "rtr EINVAL", WORKS]),
    ("wedge", "", "objects", "connect 2 4096 0 4 peer",
     ["init 0", "rtr EINVAL", "rtr EINVAL", "rtr EINVAL", "rtr EIO", WEDGED]),
    ("wedge", "wedge=off", "objects", "connect 2 4096 0 5 peer", ["init 0", *["rtr EINVAL"] * 5, WORKS]),
    ("ring", "ring=4096", "messages", "exchange 262144 262144",
     ["send 0 262144", "recv 0 262144", "data intact", "post 0 0", "send 0 262144", "recv 0 262144"]),
    ("preset", "preset=soft_roce", "messages", "unmatched", ["before 0 4096", "recv nothing", "after nothing"]),
    ("preset", "preset=soft_roce,credits=hold", "messages", "unmatched",
     ["before nothing", "recv 0 4096", "after 0 4096"]),
    ("preset", "preset=soft_roce", "objects", "make qp 40 2", ["made 40 0"]),
]  # fmt: skip

ADDRESSES = [
    ("apple", "fe80 ipv4/169.254.1.1 fe80"),
    ("ipv4_at_2", "fe80 fe80 ipv4/169.254.1.1"),
    ("fe80", "fe80 fe80"),
    ("uuid", "uuid fe80 ipv4/169.254.1.1"),
    ("several", "fe80 ipv4/10.99.0.1 zero ipv4/169.254.1.1"),
]


@pytest.mark.parametrize(
    ("rules", "program", "question", "answer"),
    [row[1:] for row in RULES],
    ids=[f"{row[0]}: {row[1] or 'as Apple'}: {row[3]}" for row in RULES],
)
def test_a_rule_acts_as_it_is_set(
    ask: Asker, rules: str, program: str, question: str, answer: list[str]
) -> None:
    """Each rule of Apple's acts when nothing is said, and acts otherwise when it is set otherwise."""
    code, lines, err = ask(program, question, rules)

    assert (code, lines) == (0, answer), err


@pytest.mark.parametrize(("layout", "table"), ADDRESSES)
def test_the_address_table_has_the_layout_asked_for(ask: Asker, layout: str, table: str) -> None:
    """Each layout of GIDs that was seen on Macs can be had, the IPv4 address always the cable's own."""
    _, lines, err = ask("objects", "devices", f"gids={layout}")

    assert f"device rdma_en2 ACTIVE lid 1 gids {table}" in lines, err


def test_no_rule_and_no_fault_goes_untested() -> None:
    """Every name of the tables in mock_rules.c and mock_fault.c is set in some test of this file."""
    own = Path(__file__).read_text()
    rules = re.findall(r'\{(?:ROW\((\w+)\)|"(\w+)", offsetof)', (MOCK / "mock_rules.c").read_text())
    kinds = re.search(r"KIND_NAMES\[KINDS\] = \{(.*?)\}", (MOCK / "mock_fault.c").read_text(), re.S)
    names = [first or second for first, second in rules]
    faults = re.findall(r'"(\w+)"', kinds[1]) if kinds else []

    assert len(names) == 30
    assert [name for name in names if f"{name}=" not in own] == []
    assert len(faults) == 8
    assert [name for name in faults if not re.search(rf'"{name}[=@" ]', own)] == []


def test_a_region_taken_away_too_early_is_a_panic(ask: Asker) -> None:
    """Deregistering memory that a work request may still touch ends the process and says why."""
    code, lines, err = ask("messages", "dereg early")

    assert code == 134
    assert lines == []
    assert "kernel panic" in err


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


def test_a_device_without_a_cable_is_down(ask: Asker) -> None:
    """An uncabled device is listed, and its port is down; an address may be given by hand."""
    cabling = "cables=m:rdma_en2/10.0.1.1-m-2:rdma_en3/10.0.1.2; devices=m:rdma_en5"
    _, lines, err = ask("objects", "devices", cabling=cabling)

    assert lines == [
        "devices 2 list",
        "device rdma_en5 DOWN lid 2 gids fe80 ipv4/169.254.103.1 fe80",
        "device rdma_en2 ACTIVE lid 1 gids fe80 ipv4/10.0.1.1 fe80",
    ], err


@pytest.mark.parametrize("fault", ["hang@rtr", "hang@post_recv:100", "hang@file:FILE"])
def test_a_call_never_returns(
    built: Callable[[str], Path], namespace: str, fault: str, tmp_path: Path
) -> None:
    """A call that hangs goes on hanging; a fault with a file waits until the file is there."""
    trigger = tmp_path / "trigger"
    env = settings(built(), namespace, faults=fault.replace("FILE", str(trigger)))
    process = start(built(), "messages", ["traffic", "-1", "none"], env)
    try:
        if "file" in fault:
            lines = [process.stdout.readline() for _ in range(3)] if process.stdout else []
            assert lines[-1] == "running 2000\n"
            trigger.touch()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3 if "file" in fault else 1)
        assert still(process)
    finally:
        finish(process)


def still(process: subprocess.Popen[str]) -> bool:
    """True for a process that sleeps in its call: Linux says so, elsewhere that it lives must do."""
    if sys.platform != "linux":
        return process.poll() is None
    return Path(f"/proc/{process.pid}/stat").read_text().split(") ")[1][0] == "S"


def start(folder: Path, program: str, question: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command_of(folder, program, question), env=env, stdout=pipe, stderr=pipe, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.kill()
    return process.communicate(timeout=DEADLINE_S)


class Pair:
    """Two processes at the ends of one cable, each its own machine."""

    cabling = "cables=a:rdma_en2-b:rdma_en3"

    def __init__(
        self, folder: Path, name: str, at: Path, mode: str, rules: str = "", fault: str = ""
    ) -> None:
        question = [str(at / "s"), *mode.split()]
        ends = [("a", "rdma_en2", fault), ("b", "rdma_en3", "")]
        self.ends = [
            start(
                folder, "pair", [device, *question], settings(folder, name, node, self.cabling, rules, faults)
            )
            for node, device, faults in ends
        ]

    def answers(self) -> list[Answer]:
        """Exit code, lines and standard error of both, which must end by themselves."""
        out = [end.communicate(timeout=DEADLINE_S) for end in self.ends]
        return [(end.returncode, o.splitlines(), e) for end, (o, e) in zip(self.ends, out, strict=True)]

    def finish(self) -> None:
        for end in self.ends:
            finish(end)


@pytest.fixture
def pair(built: Callable[[str], Path], namespace: str, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Start two processes; those that still run are ended."""
    pairs: list[Pair] = []

    def started(mode: str, rules: str = "", fault: str = "", sanitizers: str = "address,undefined") -> Pair:
        pairs.append(Pair(built(sanitizers), namespace, tmp_path, mode, rules, fault))
        return pairs[-1]

    yield started
    for each in pairs:
        for end in each.ends:
            if end.poll() is None:
                finish(end)


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
    built: Callable[[str], Path], namespace: str, ask: Asker, rules: str, holders: str, left: int
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


def test_namespaces_do_not_meet(built: Callable[[str], Path], namespace: str, ask: Asker) -> None:
    """Another namespace's queue pairs are not counted here."""
    holder = start(built(), "objects", ["hold", "6"], settings(built(), namespace))
    other = settings(built(), f"{namespace}x")
    try:
        assert holder.stdout and holder.stdout.readline() == "holding\n"
        assert run(built(), "objects", ["make", "qp", "40", "1"], other)[1] == ["made 10 EBUSY"]
        assert ask("objects", "make qp 40 1")[1] == ["made 4 EBUSY"]
    finally:
        finish(holder)


def test_other_cables_in_one_namespace_are_refused(
    built: Callable[[str], Path], namespace: str, ask: Asker
) -> None:
    """Two processes that disagree on the cabling are told so, before any message goes astray."""
    holder = start(built(), "objects", ["hold", "1"], settings(built(), namespace))
    try:
        assert holder.stdout and holder.stdout.readline() == "holding\n"
        _, lines, err = ask("objects", "devices", cabling="cables=m:rdma_en2-m:rdma_en4")
    finally:
        finish(holder)

    assert lines == ["devices 0 EINVAL"]
    assert "have other cables" in err


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("keys", ["recv 4 128", "recv 4 128"]),
        ("psn", ["send 0 4096", "recv nothing"]),
        ("order", ["pd EBUSY cq EBUSY context EBUSY"]),
        ("idle", ["recv 0 4096", "send 0 4096"]),
        ("again", ["flushed 5 0", "recv 0 64", "calls 4"]),
    ],
)
def test_what_any_verbs_provider_does(ask: Asker, question: str, answer: list[str]) -> None:
    """A wrong key is a protection error, a wrong PSN a lost message, destruction goes in order, a held send goes out
    without its sender's poll, and a queue pair can be reset and used again."""
    code, lines, err = ask("objects" if question == "order" else "messages", question)

    assert (code, lines) == (0, answer), err


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
    built: Callable[[str], Path], namespace: str, setting: str, text: str, word: str
) -> None:
    """One line names the variable, what is wrong and what was got; no device is listed."""
    if setting == "TBKIT_MOCK":
        text = f"namespace={namespace}; {text}"
    code, lines, err = run(built(), "objects", ["devices"], settings(built(), namespace) | {setting: text})

    assert (code, lines) == (0, ["devices 0 EINVAL"])
    assert err.count("\n") == 1
    assert err.startswith(f"tbmock: {setting}: ")
    assert word in err


def test_fields_may_stand_in_a_file(ask: Asker, tmp_path: Path) -> None:
    """The cabling of all nodes in one file, the node's own name beside it."""
    (tmp_path / "cabling").write_text("# two cables\ncables=m:rdma_en2-n:rdma_en2, m:rdma_en3-n:rdma_en3\n")
    _, lines, err = ask("objects", "devices", cabling=f"file={tmp_path}/cabling")

    assert [line.split()[1] for line in lines[1:]] == ["rdma_en3", "rdma_en2"], err
