"""``explain``: from a run, ours or a stranger's, to its ledgers, causes, laws and the next experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tbkit.errors import RunError
from tbkit.explain.blocks import rows_of
from tbkit.explain.ledger import ledgers
from tbkit.record import Ledger, Record, find_run, read, samples
from tbkit.show import Shown

MINOR_SHARE = 0.02
THREE_COUNTS = "three node counts cannot identify USL's β"


class Explanation(Shown):
    """Why N machines are not N times faster, for one run. ``record`` carries the ledgers."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path = path
        self.record = record
        self.causes = [_cause(ledger) for ledger in record.ledgers]
        self.ruled_out = [words for ledger in record.ledgers for words in _ruled_out(ledger)]
        self.laws = _laws(record)
        self.next_experiment = _next(record)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The closed accounts, one a plan with all arms."""
        return self.record.ledgers

    @property
    def words(self) -> str:
        """The answer in a sentence or two."""
        return " ".join(self.causes) or "No plan of this run has all arms, so there is no ledger."

    def __repr__(self) -> str:
        return f"<Explanation of {self.record.id}: {self.words}>"

    def to_json(self) -> dict[str, Any]:
        """The keys of the verb ``explain`` (design.md 9)."""
        found = []
        for ledger in self.ledgers:
            listed = [
                {
                    "name": t.name,
                    "us": t.us,
                    "low": t.low,
                    "high": t.high,
                    "share": t.share,
                    "routes": {"interventions": t.us, "second": msgspec.to_builtins(t.second)},
                }
                for t in ledger.terms
            ]
            residual = msgspec.to_builtins(ledger.residual)
            found.append({"nodes": ledger.nodes, "plan": ledger.plan, "terms": listed, "residual": residual})
        return {
            "ledgers": found,
            "ruled_out": self.ruled_out,
            "causes": self.causes,
            "laws": self.laws,
            "words": self.words,
            "next_experiment": self.next_experiment,
        }


def explain(run: Any = "last", root: Path | str | None = None) -> Explanation:
    """Explain a run: a Run, a folder, an id, or ``last``.

    RunError when the run is WRONG or did not finish: there is no rate to explain. UsageError for an unknown run.
    """
    path: Path = getattr(run, "path", None) or find_run(str(run), root)
    record = read(path)
    if record.state != "done":
        places = [c.words for g in record.gates for c in g.checks if not c.ok]
        raise RunError(
            f"run {record.id}",
            "is explained when it is done",
            record.state,
            "; ".join(places) or "Run it again",
        )
    layers = int(record.factors.get("layers", 0))
    return Explanation(
        path, msgspec.structs.replace(record, ledgers=tuple(ledgers(record, rows_of(samples(path)), layers)))
    )


def _cause(ledger: Ledger) -> str:
    lost = ledger.step_us.value - ledger.ideal_us
    told = [term for term in ledger.terms if term.low > 0]
    if not told:
        return f"{ledger.plan} on {ledger.nodes}: {lost / 1e3:.1f} ms a step are lost, and no term is told from 0."
    largest = max(told, key=lambda term: term.us)
    return (
        f"{ledger.plan} on {ledger.nodes}: a step takes {ledger.step_us.value / 1e3:.1f} ms where "
        f"{ledger.ideal_us / 1e3:.1f} ms were ideal; of the {lost / 1e3:.1f} ms lost, {largest.name} takes "
        f"{largest.us / 1e3:.1f} ms [{largest.low / 1e3:.1f}, {largest.high / 1e3:.1f}] ({largest.words})."
    )


def _ruled_out(ledger: Ledger) -> list[str]:
    lost = ledger.step_us.value - ledger.ideal_us
    return [
        f"{term.name} ({ledger.plan} on {ledger.nodes}): at most {term.high / lost:.1%} of the lost time"
        for term in ledger.terms
        if lost > 0 and term.high / lost < MINOR_SHARE
    ]


def _laws(record: Record) -> dict[str, Any]:
    """Karp–Flatt e = (1/S - 1/p)/(1 - 1/p) of each speed-up; USL refused with the reason."""
    rows = []
    for s in record.speedup:

        def share(value: float, p: int = s.nodes) -> float:
            return (1 / value - 1 / p) / (1 - 1 / p)

        e = share(s.value)
        words = "slowdown: the law does not apply" if e > 1 else ""
        rows.append(
            {
                "nodes": s.nodes,
                "plan": s.plan,
                "value": e,
                "low": share(s.high),
                "high": share(s.low),
                "words": words,
            }
        )
    return {"karp_flatt": rows, "usl": {"refused": THREE_COUNTS}}


def _next(record: Record) -> str:
    """The cheapest run that would separate the leading causes."""
    open_ledgers = [ledger for ledger in record.ledgers if not ledger.residual.resolved]
    if open_ledgers:
        ledger = max(open_ledgers, key=lambda item: item.residual.blocks_needed)
        return (
            f"The residual of {ledger.plan} on {ledger.nodes} is not resolved: run the same plan with "
            f"--blocks {ledger.residual.blocks_needed}."
        )
    if not record.ledgers:
        return "Run all arms: tbkit scale decode --kind tensor-uneven --on 1,2."
    largest = max(record.ledgers[0].terms, key=lambda term: term.us).name
    advice = {
        "contention": "Run one rank a machine, or fewer ranks than cores, to take contention out.",
        "fence": "Run the same plan with --backend ring, whose collectives stay in the graph.",
        "wait": "Run with --loads 3: waiting that follows a load is placement, not the program.",
        "bubble": "Run a tensor kind beside it: only that fills the stages at batch 1.",
    }
    return advice.get(largest, f"Run with --loads 5 to see whether {largest} holds between loads.")
