"""Ranks on the nodes of the rack, seen from the host, which is their control plane."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from tbkit.errors import TbkitError, from_dict
from tests.rack.rack import Rack
from tests.rack.remote import Process

START_S, ANSWER_S = 60.0, 60.0
SILENCE_S = 6.0
FORM = "globals().update(join(globals()))\nresult = said"


class Ranks:
    """One rank program on each of ``numbers``, in that order. Answers come with ``took_s``, errors as values."""

    def __init__(self, rack: Rack, numbers: Sequence[int]) -> None:
        self.rack, self.numbers = rack, tuple(numbers)
        self.took_s: list[float] = []
        self.programs = [rack.node(k).start([sys.executable, "-m", "tests.rack.rank"]) for k in numbers]
        self._rest = [b"" for _ in numbers]
        self._talk(range(len(self.programs)), START_S)

    def form(
        self, carrier: str, among: Sequence[int] | None = None, inside: int | None = None, **options: Any
    ) -> list[Any]:
        """Have the ranks (all, or these) form a full mesh over their cables; what each says of its cabling.

        Ranks of one and the same node are joined ``inside`` it, by its device that faces that peer.
        """
        ranks = list(range(len(self.numbers)) if among is None else among)
        pairs = combinations(range(len(ranks)), 2)
        row = self._row(ranks, carrier, inside)
        cables = [(row(a, b), row(b, a), carrier) for a, b in pairs]
        nodes = [f"mac{self.numbers[rank]}" + (f"-{rank}" if inside else "") for rank in ranks]
        defaults = {"deadline_s": 30.0, "silence_s": SILENCE_S, "policy": "auto"}
        return self.run(FORM, ranks, nodes=nodes, cables=cables, **(defaults | options))

    def _row(self, ranks: Sequence[int], carrier: str, inside: int | None) -> Any:
        def row(own: int, peer: int) -> tuple[int, str, str]:
            node, other = self.numbers[ranks[own]], inside or self.numbers[ranks[peer]]
            device = self.rack.device(node, other) if carrier == "verbs" else ""
            return own, self.rack.address(node, other), device

        return row

    def run(
        self, code: str, ranks: Sequence[int] | None = None, timeout_s: float = ANSWER_S, **values: Any
    ) -> list[Any]:
        """Run code on ranks at once; each one's ``result`` in order, errors of tbkit as values."""
        chosen = self.begin(code, ranks, **values)
        return self.collect(chosen, timeout_s)

    def begin(self, code: str, ranks: Sequence[int] | None = None, **values: Any) -> list[int]:
        """Start code on ranks; ``collect`` them later."""
        chosen = list(range(len(self.programs)) if ranks is None else ranks)
        for place, rank in enumerate(chosen):
            request = {"code": code, "values": {"rank": place, "size": len(chosen), **values}}
            self._write(rank, json.dumps(request).encode())
        return chosen

    def collect(self, ranks: Sequence[int], timeout_s: float = ANSWER_S) -> list[Any]:
        """The answers of ranks that were begun."""
        answers = self._talk(ranks, timeout_s)
        self.took_s = [answer["took_s"] for answer in answers]
        for answer in answers:
            assert "failed" not in answer, answer["failed"]
        return [from_dict(a["error"]) if "error" in a else a["result"] for a in answers]

    def end(self) -> None:
        for program in self.programs:
            program.kill()

    def _write(self, rank: int, line: bytes) -> None:
        stream = self.programs[rank].stdin
        stream.write(line + b"\n")
        stream.flush()

    def _talk(self, ranks: Sequence[int], timeout_s: float) -> list[Any]:
        """Until each rank has answered; the notes of an exchange are handed to all once all are there."""
        answers: dict[int, Any] = {}
        notes: dict[int, bytes] = {}
        end = time.monotonic() + timeout_s
        while len(answers) < len(ranks):
            for rank in self._readable([r for r in ranks if r not in answers], end):
                for line in self._lines(rank):
                    word, _, text = line.partition(b" ")
                    if word == b"note":
                        notes[rank] = text
                    elif word == b"answer":
                        answers[rank] = json.loads(text)
            if len(notes) == len(ranks):
                gathered = b" ".join(notes[rank] for rank in ranks)
                for rank in ranks:
                    self._write(rank, b"notes " + gathered)
                notes.clear()
        return [answers[rank] for rank in ranks]

    def _readable(self, ranks: Sequence[int], end: float) -> list[int]:
        streams = {self.programs[rank].stdout.fileno(): rank for rank in ranks}
        found = select.select(list(streams), [], [], max(0.0, end - time.monotonic()))[0]
        if not found:
            names = ", ".join(f"node {self.numbers[rank]}" for rank in ranks)
            raise TimeoutError(f"no answer from {names}")
        return [streams[descriptor] for descriptor in found]

    def _lines(self, rank: int) -> list[bytes]:
        data = self.programs[rank].stdout.read(1 << 20)
        if not data:
            raise EOFError(f"the rank on node {self.numbers[rank]} ended: {words(self.programs[rank])}")
        *lines, self._rest[rank] = (self._rest[rank] + data).split(b"\n")
        return lines


def words(program: Process) -> str:
    """What a program that ended left on its standard error."""
    return program.stderr.read(1 << 16).decode(errors="replace")[-2000:]


def are_errors(answers: Sequence[Any], kind: type[TbkitError] | tuple[type[TbkitError], ...]) -> bool:
    """Every answer is an error of that kind."""
    return all(isinstance(answer, kind) for answer in answers)
