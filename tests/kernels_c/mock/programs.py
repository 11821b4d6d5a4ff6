"""The mock and the programs that ask it: how they are built and run.

Built with sanitizers against the machine's own <infiniband/verbs.h>; the programs answer in lines of words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
MOCK = HERE.parents[2] / "kernels_c" / "mock"
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
PROGRAMS = ("objects", "messages", "pair")
CABLE = "cables=m:rdma_en2-m:rdma_en3"
DEADLINE_S = 60.0

Answer = tuple[int, list[str], str]  # exit code, lines, standard error
Asker = Callable[..., Answer]
Folder = Callable[..., Path]  # of the sanitizers


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
        commands.append([*options, f"-I{HERE.parent}", str(HERE / f"{name}.c"), "-o", name, "-ldl", "-lm"])
    for command in commands:
        done = subprocess.run([COMPILER, *command], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-4000:]
    return folder


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


def folders_of(name: str) -> list[Path]:
    """What a namespace has on this machine."""
    place = "/dev/shm" if sys.platform == "linux" else os.environ.get("TMPDIR", "/tmp")
    return list(Path(place).glob(f"tbmock-{os.getuid()}-{name}"))


def command_of(folder: Path, program: str, question: list[str]) -> list[str]:
    # ThreadSanitizer of older compilers cannot bear much address randomisation.
    prefix = ["setarch", "-R"] if sys.platform == "linux" and shutil.which("setarch") else []
    return [*prefix, str(folder / program), *question]


def run(folder: Path, program: str, question: list[str], env: dict[str, str]) -> Answer:
    done = subprocess.run(
        command_of(folder, program, question), env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


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
