"""What a record says in words: headline, base case, warnings, faults. Plain text, no mark-up.

A run with a WRONG plan has no rate: nothing here gives a time, a rate or a speed-up of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from tbkit import units
from tbkit.record.schema import Arm, Check, Gate, Ledger, Record, Residual, SpeedUp, Term

REALITY = {
    "local": "real engines, compute and channels on one machine",
    "emulated": "real engines and channels, links shaped, compute paced",
    "simulated": "nothing runs, virtual time",
    "mock": "a false librdma with Apple's rules",
    "rack": "virtual nodes with a real kernel's verbs",
    "published": "somebody else's number",
}
KINDS = ("tensor-pipeline", "tensor-uneven", "pipeline", "tensor", "one")
PRODUCTION = "P"  # the intervention that changes nothing; the only one whose rate is a result


class Counted(Protocol):
    """What belongs to one plan on a number of nodes."""

    @property
    def nodes(self) -> int: ...
    @property
    def plan(self) -> str: ...


Of = TypeVar("Of", bound=Counted)


def reality_text(reality: str) -> str:
    """``'local: real engines, compute and channels on one machine'``."""
    return f"{reality}: {REALITY[reality]}" if reality in REALITY else reality


def plan_kind(plan: str) -> str:
    """The kind at the start of a plan's name; the name itself when it is of no known kind."""
    return next((kind for kind in KINDS if plan.startswith(kind)), plan)


def reading_order(found: Iterable[Of]) -> list[Of]:
    """2 nodes first, then the others by count; what shares a count keeps its order."""
    return sorted(found, key=lambda it: (it.nodes != 2, it.nodes))


def nodes_text(nodes: int) -> str:
    """``'1 node'``, ``'2 nodes'``."""
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"


def is_wrong(record: Record) -> bool:
    """Whether any plan of the run failed its gate; then no rate of the run is shown."""
    return record.state == "wrong" or any(gate.verdict == "WRONG" for gate in record.gates)


def faults(record: Record) -> list[tuple[Gate, Check]]:
    """The failed checks with their gate: where the fault is."""
    return [(gate, check) for gate in record.gates for check in gate.checks if not check.ok]


def production_arms(record: Record) -> list[Arm]:
    """Arms of the plain production step in reading order, fastest first; [] for a WRONG run."""
    if is_wrong(record):
        return []
    arms = sorted(record.arms, key=lambda arm: arm.step_us.value)
    return reading_order(arm for arm in arms if arm.intervention == PRODUCTION)


def speedups(record: Record) -> list[SpeedUp]:
    """Speed-ups of more than one node in reading order; [] for a WRONG run."""
    found = sorted(record.speedup, key=lambda s: -s.value)
    return [] if is_wrong(record) else reading_order(s for s in found if s.nodes > 1)


def ledgers(record: Record) -> list[Ledger]:
    """The accounts in reading order; [] for a WRONG run."""
    return [] if is_wrong(record) else reading_order(record.ledgers)


def base_text(record: Record) -> str:
    """``'T₁ = 108 ms/step [107, 109], 9.2 tok/s, measured on 1 node'``; says so when there is none."""
    base = next((arm for arm in production_arms(record) if arm.nodes == 1), None)
    if base is None:
        return "T₁ was not measured in this run"
    step, rate = base.step_us, base.decode_tok_s
    places = units.interval_places(rate.low, rate.high, rate.value)
    time = units.time_interval_text(step.value, step.low, step.high).replace("s [", "s/step [", 1)
    return f"T₁ = {time}, {units.number(rate.value, places)} tok/s, measured on 1 node"


def speedup_sentence(speedup: SpeedUp) -> str:
    """``'2 nodes, tensor-uneven: 1.31× [1.28, 1.34] of an ideal 2×'``; says when it is a slowdown."""
    who, ideal = f"{nodes_text(speedup.nodes)}, {speedup.plan}", f"of an ideal {speedup.nodes}×"
    text = f"{who}: {units.speedup_text(speedup)} {ideal}"
    return text + (", slower than one node" if speedup.high < 1 else "")


def largest_loss(ledger: Ledger) -> Term | None:
    """The term that costs most and whose interval is above 0; None when nothing is told from 0."""
    losses = [term for term in ledger.terms if term.low > 0]
    return max(losses, key=lambda term: term.us, default=None)


def loss_sentence(ledger: Ledger) -> str:
    """What the largest loss is, its time a step with its interval, and its cause."""
    term = largest_loss(ledger)
    if term is None:
        return "no term of the ledger is told from 0 by its interval"
    time = units.time_interval_text(term.us, term.low, term.high, scale=ledger.step_us.value)
    cause = f" ({term.words.rstrip('.')})" if term.words else ""
    return f"the largest loss is {term.name}, {time} a step{cause}"


def headline(record: Record) -> str:
    """One sentence that answers the run's question; for a WRONG run, the place of the fault."""
    if is_wrong(record):
        return wrong_sentence(record)
    accounts, found = ledgers(record), speedups(record)
    if not found:
        return f"{record.workload} of {record.model}: {base_text(record)}; no speed-up was measured"
    ledger = accounts[0] if accounts else None
    same = [s for s in found if ledger and (s.nodes, s.plan) == (ledger.nodes, ledger.plan)]
    sentence = speedup_sentence((same or found)[0])
    return f"{sentence}; {loss_sentence(ledger)}" if ledger and same else sentence


def wrong_sentence(record: Record) -> str:
    """``'WRONG: ... No rate is given.'`` with the words of every failed check."""
    found = faults(record)
    places = [f"{nodes_text(g.nodes)}, {g.plan}: {c.name}: {c.words}" for g, c in found]
    return f"WRONG: {'; '.join(places) or 'the gate failed'}. No rate is given"


def second_text(term: Term, scale_us: float) -> str:
    """The second source's value with interval, or "one route only"."""
    if term.second is None:
        return "one route only"
    second = term.second
    return units.time_interval_text(second.value, second.low, second.high, signed=True, scale=scale_us)


def residual_text(residual: Residual) -> str:
    """How the residual is to be read: resolved, or the blocks that it would take."""
    if residual.resolved:
        return "resolved"
    return f"not resolved; it would take {residual.blocks_needed} blocks"


def warnings(record: Record) -> list[str]:
    """What a reader must know before using a number of this run."""
    judged = (_unfinished, _unchecked, _unstable, _scopes, _oversubscribed)
    found = [] if is_wrong(record) else [text for judge in judged for text in judge(record)]
    return found + [note for note in record.notes if note not in found]


def _unfinished(record: Record) -> list[str]:
    return (
        [f"this run did not end well (state {record.state})"] if record.state in ("failed", "running") else []
    )


def _unchecked(record: Record) -> list[str]:
    checked = {(gate.nodes, gate.plan) for gate in record.gates}
    return [
        f"not checked: the answers of {nodes_text(arm.nodes)}, {arm.plan} were not compared with one node's"
        for arm in production_arms(record)
        if arm.nodes > 1 and (arm.nodes, arm.plan) not in checked
    ]


def _unstable(record: Record) -> list[str]:
    return [
        f"not stable: {nodes_text(arm.nodes)}, {arm.plan}: the last three warm-up blocks spread by "
        f"{units.percent_text(arm.spread, 1)} (2 % allowed)"
        for arm in production_arms(record)
        if not arm.stable
    ]


def _scopes(record: Record) -> list[str]:
    return [
        f"{nodes_text(ledger.nodes)}, {ledger.plan}: intervals hold {ledger.interval_scope}; "
        "how much another load would differ is not in them"
        for ledger in ledgers(record)
        if ledger.interval_scope == "within one load"
    ]


def _oversubscribed(record: Record) -> list[str]:
    cores, threads = record.cluster.get("cores"), record.factors.get("threads_per_rank", 1)
    if not isinstance(cores, int) or not isinstance(threads, int):
        return []
    counts = sorted({arm.nodes for arm in production_arms(record)})
    crowded = [n for n in counts if n > 1 and n * threads > cores]
    return [f"oversubscribed: {n} ranks of {threads} thread(s) on {cores} cores" for n in crowded]
