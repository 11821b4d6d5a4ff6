"""Ranks as long-lived processes, so that one test can kill, stop and compare them; every answer has a
deadline."""

from __future__ import annotations

import itertools
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tbkit.errors import TbkitError, from_dict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ANSWER_S = 40.0
_numbers = itertools.count()


def new_name() -> str:
    """A group name that no other run uses."""
    return f"tbt-{os.getpid()}-{next(_numbers)}"


class Rank:
    """One worker process."""

    def __init__(self) -> None:
        environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )

    def ask(self, code: str, values: dict[str, Any]) -> None:
        data = pickle.dumps((code, values))
        assert self.process.stdin is not None
        view = memoryview(struct.pack("<Q", len(data)) + data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def _read(self, count: int, end: float) -> bytes:
        assert self.process.stdout is not None
        data = b""
        while len(data) < count:
            if not select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("a rank of the test did not answer: the fabric hangs")
            part = self.process.stdout.read(count - len(data))
            if not part:
                raise EOFError("a rank of the test ended")
            data += part
        return data

    def answer(self) -> Any:
        """The value, or the TbkitError as a value; anything else that was raised fails the test."""
        end = time.monotonic() + ANSWER_S
        kind, value = pickle.loads(self._read(struct.unpack("<Q", self._read(8, end))[0], end))
        if kind == "failed":
            raise AssertionError(value)
        return from_dict(value) if kind == "error" else value

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Ranks:
    """Several workers and the groups that they have formed."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.joined: set[str] = set()

    def start(self, code: str, ranks: Sequence[int], each: dict[str, Sequence[Any]], **same: Any) -> None:
        for place, rank in enumerate(ranks):
            own = {name: values[place] for name, values in each.items()}
            self.ranks[rank].ask(code, {"rank": place, "size": len(ranks), **same, **own})

    def collect(self, ranks: Sequence[int]) -> list[Any]:
        return [self.ranks[rank].answer() for rank in ranks]

    def run(
        self, code: str, ranks: Sequence[int], each: dict[str, Sequence[Any]] | None = None, **same: Any
    ) -> list[Any]:
        """Run code on the ranks at once; each rank's ``result``, in order, errors of tbkit as values."""
        self.start(code, ranks, each or {}, **same)
        return self.collect(ranks)

    def group(
        self, size: int, policy: str = "auto", deadline_s: float = 20.0, fresh: bool = False
    ) -> list[int]:
        """Have the first ``size`` workers form a group, called ``g`` there; the ranks to run it with."""
        key = f"{size} {policy} {deadline_s}"
        ranks = list(range(size))
        if fresh or key not in self.joined:
            code = "from tbkit.fabric import join\ngroups[key] = join(name, rank, size, deadline_s, policy)"
            answers = self.run(code, ranks, name=new_name(), policy=policy, deadline_s=deadline_s, key=key)
            assert not any(isinstance(answer, TbkitError) for answer in answers), answers
            self.joined.add(key)
        self.run("g = groups[key]", ranks, key=key)
        return ranks

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


@pytest.fixture(scope="session")
def pool() -> Iterator[Ranks]:
    """Eight ranks that no test may harm."""
    ranks = Ranks([Rank() for _ in range(8)])
    yield ranks
    ranks.end()


@pytest.fixture(scope="session")
def spares() -> Iterator[list[Rank]]:
    """Ranks that start while the test before still runs."""
    waiting: list[Rank] = []
    yield waiting
    Ranks(waiting).end()


@pytest.fixture
def victims(spares: list[Rank]) -> Iterator[Ranks]:
    """Three ranks of this test alone, which it may kill; nothing may be left in shared memory."""
    while len(spares) < 6:
        spares.append(Rank())
    ranks = Ranks([spares.pop(0) for _ in range(3)])
    yield ranks
    ranks.end()
    assert not leftovers(), "shared memory was left behind"


def leftovers() -> list[str]:
    """Segments of this test run that still have a name."""
    folder = Path("/dev/shm")
    return [path.name for path in folder.glob(f"tbt-{os.getpid()}-*")] if folder.is_dir() else []


@pytest.fixture(scope="session")
def rules() -> ModuleType:
    """The inputs that tests and ranks make alike."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("fabric_worker", HERE / "worker.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def name() -> str:
    """A new group name."""
    return new_name()
