"""Synthetic runs whose causes are planted: rows of a run folder such that every term is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tbkit.record import Check, Gate, Record, RunFolder, Sample, SpeedUp

UNEVEN = "tensor-uneven"
STEPS = 4
LAYERS = 2
Ranks = Sequence[float]

# One block of two ranks, microseconds. T_1 is 100, so the ideal is 50.
ARMS: dict[str, Ranks] = {
    "A": (60, 56),
    "N": (66, 60),
    "C": (64, 62),
    "L": (75, 74),
    "F": (82, 81),
    "P": (80, 79),
}
SEGMENTS = ([20.0, 15.0, 30.0], [25.0, 10.0, 15.0])  # the larger ones sum up to 70
REPLICATED: dict[str, Ranks] = {"norms": (2, 2), "sampling": (1, 1), "build": (3, 5)}
CUT: dict[str, Ranks] = {"q_proj": (30, 20), "head": (25, 27)}
TOGETHER: dict[str, Ranks] = {
    "q_proj": (34, 24),
    "norms": (2, 2),
    "build": (31, 33),
}  # means 5 above those alone
HALVES = ([12.0, 9.0] * LAYERS, [9.0, 12.0] * LAYERS)  # rank 0 late in attention, rank 1 in the MLP
LINKS = {"crossing": -1 / 3, "one": 0.8, "one_gathered": 1.0, "hidden": 2.0, "logits": 2.0}
BASE = {"norms": 2.0, "sampling": 1.0, "build": 4.0, "q_proj": 43.0, "head": 50.0}
TERMS = {
    "replicated": 3.5,
    "shape": 4.5,
    "contention": 5.0,
    "imbalance": 3.0,
    "fence": -2.0,
    "wait": 6.0,
    "latency": 5.0,
    "transfer": 7.0,
    "instruments": -2.0,
}


def steps(
    plan: str, what: str, block: int, us: Ranks, segments: Any = None, load: int = 0
) -> Iterable[Sample]:
    """The steps of an arm on each rank, all alike."""
    for rank, own in enumerate(us):
        for step in range(STEPS):
            parts = segments[rank] if segments else None
            yield Sample(load, len(us), plan, what, block, False, step, rank, float(own), parts)


def once(plan: str, what: str, block: int, us: Ranks, segments: Any = None) -> Iterable[Sample]:
    """A quantity measured once a block on each rank."""
    for rank, own in enumerate(us):
        yield Sample(
            0, len(us), plan, what, block, False, 0, rank, float(own), segments[rank] if segments else None
        )


def arms(plan: str = UNEVEN, blocks: int = 4, shift: Ranks = (0, 0, 0, 0), **changed: Ranks) -> list[Sample]:
    """All arms on two ranks; ``shift`` is added to every arm of a block."""
    rows: list[Sample] = []
    for block in range(blocks):
        for name, us in (ARMS | changed).items():
            moved = [x + shift[block] for x in us]
            rows += steps(plan, name, block, moved, SEGMENTS if name == "C" else None)
        for name, us in (REPLICATED | CUT).items():
            rows += once(plan, f"alone/{name}", block, us)
    return rows


def base(blocks: int = 4, shift: Ranks = (0, 0, 0, 0)) -> list[Sample]:
    """The single node: its steps and its pieces."""
    rows: list[Sample] = []
    for block in range(blocks):
        rows += steps("one", "P", block, [100.0 + shift[block]], load=1)
        rows += [Sample(1, 1, "one", f"alone/{k}", block, False, 0, 0, v) for k, v in BASE.items()]
    return rows


def sources(plan: str = UNEVEN, blocks: int = 4) -> list[Sample]:
    """Second sources that agree with the arms."""
    rows: list[Sample] = []
    for block in range(blocks):
        for name, us in TOGETHER.items():
            rows += once(plan, f"together/{name}", block, us)
        rows += once(plan, "together/segments", block, [sum(h) for h in HALVES], HALVES)
        for name, us_each in LINKS.items():
            rows += once(plan, f"link/{name}", block, [us_each, us_each])
    return rows


class Maker:
    """Writes a run folder of given rows."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 0

    def __call__(self, rows: Iterable[Sample], state: Any = "done", **more: Any) -> Path:
        self.count += 1
        name = f"20260911-1015{self.count:02d}-decode-f1c5"
        facts: dict[str, Any] = {
            "cluster": {"nodes": ["local0", "local1"], "size": 2, "cores": 2},
            "factors": {"layers": LAYERS},
        }
        made = Record(name, "decode", "running", "local", "2026-09-11T10:15:00Z", "tiny", **(facts | more))
        folder = RunFolder.create(self.root, made)
        folder.journal(rows)
        if state != "running":
            folder.finish(Record(name, "decode", state, "local", made.created, "tiny", **(facts | more)))
        return folder.path


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Makes run folders under a folder of this test."""
    return Maker(tmp_path)


@pytest.fixture(scope="session")
def planted() -> Any:
    """The planted figures and the makers of their rows."""
    import sys

    return sys.modules[__name__]


@pytest.fixture(scope="session")
def wrong_gate() -> Gate:
    return Gate(2, UNEVEN, "WRONG", (Check("place", False, "first difference: layer 7, o_proj, rank 1"),))


@pytest.fixture(scope="session")
def speedup() -> Callable[..., SpeedUp]:
    return lambda nodes, value, low=None, high=None: SpeedUp(
        nodes, "tensor", value, low or value, high or value
    )
