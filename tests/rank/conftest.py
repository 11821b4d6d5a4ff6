"""Rank processes without ipyparallel: supervisors held by the test, and small seeded models for them."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tbkit.model.facts import ModelFacts
from tbkit.plan import plan
from tbkit.rank.supervisor import Supervisor

HERE = Path(__file__).parent
ANSWER_S = 30.0
_numbers = itertools.count()

RUN = """
import mlx.core as mx, numpy as np
from tbkit.rank.sharded.interventions import links_of
sharded = body.model
"""


def ended(pid: int, within_s: float) -> bool:
    """Whether a process, child or not, ends in time; one that nobody has waited for counts as ended."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def new_supervisor(node: str = "n0") -> Supervisor:
    """A supervisor whose rank also knows the verb ``python``."""
    path = f"{HERE / 'verbs'}{os.pathsep}{HERE.parents[1]}"
    return Supervisor(node, {"PYTHONPATH": path})


class Ranks:
    """Several supervisors, asked at once."""

    def __init__(self, count: int) -> None:
        self.supervisors = [new_supervisor(f"n{i}") for i in range(count)]
        self.threads = ThreadPoolExecutor(count)

    def ask(self, verb: str, each: Sequence[dict[str, Any]], deadline_s: float = ANSWER_S) -> list[Any]:
        """The answers of the first ``len(each)`` ranks."""
        pairs = zip(self.supervisors, each, strict=False)
        pending = [self.threads.submit(s.call, verb, args, deadline_s) for s, args in pairs]
        return [one.result(deadline_s + 10) for one in pending]

    def python(self, size: int, code: str, **values: Any) -> list[Any]:
        """Run code on the first ``size`` ranks; ``body`` and ``sharded`` are names there."""
        return self.ask("python", [{"code": RUN + code, "values": values}] * size)

    def join(self, size: int, world: bool = False) -> None:
        """The first ``size`` ranks form a group, observed as an engine would."""
        name = f"tbr-{os.getpid()}-{next(_numbers)}"
        shared = {"name": name, "size": size, "deadline_s": 20.0, "policy": "auto", "world": world}
        for rank, one in enumerate(self.supervisors[:size]):
            one.observe(name, rank, size, world)
        self.ask("join", [shared | {"rank": i} for i in range(size)])

    def load(
        self, facts: ModelFacts, nodes: int, kind: str, weights: str = "random:float32", **more: Any
    ) -> list[Any]:
        """Cut a model over the first ``nodes`` ranks; the reports."""
        if nodes > 1:
            self.join(nodes)
        placed = plan(facts, nodes)[kind]
        shared = {"facts": msgspec.to_builtins(facts), "plan": msgspec.to_builtins(placed)}
        shared |= {"weights": weights, **more}
        return self.ask("load", [shared | {"rank": i} for i in range(nodes)])

    def end(self) -> None:
        for one in self.supervisors:
            one.stop()
        self.threads.shutdown()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Four ranks that no test may harm; they leave nothing in shared memory or in the temporary folder."""
    before = leftovers()
    made = Ranks(4)
    yield made
    pids = [one.process.pid for one in made.supervisors if one.process]
    made.end()
    assert all(ended(pid, 5.0) for pid in pids)
    assert leftovers() <= before


def leftovers() -> set[str]:
    """What these tests could leave: named segments, and files of ranks."""
    shared = Path("/dev/shm")
    found = {path.name for path in shared.glob(f"tbr-{os.getpid()}-*")} if shared.is_dir() else set()
    return found | {path.name for path in Path(tempfile.gettempdir()).glob("tbkit-*.npz")}


@pytest.fixture
def start() -> Iterator[Callable[..., Supervisor]]:
    """Starts supervisors of this test alone; their ranks are ended with it."""
    made: list[Supervisor] = []

    def begin(node: str = "n0") -> Supervisor:
        made.append(new_supervisor(node))
        return made[-1]

    yield begin
    pids = [one.process.pid for one in made if one.process]
    for one in made:
        one.stop()
    assert all(ended(pid, 5.0) for pid in pids)


@pytest.fixture(scope="session")
def ends() -> Callable[[int, float], bool]:
    """Whether a process ends in time."""
    return ended


@pytest.fixture
def name() -> Iterator[str]:
    """A new group name; nothing of it may be left in shared memory."""
    from tbkit.fabric import discard

    made = f"tbr-{os.getpid()}-{next(_numbers)}"
    yield made
    discard(made)
