"""A run for a terminal, and as the JSON document of ``tbkit quickstart``."""

from __future__ import annotations

import textwrap
from typing import Any

from tbkit.record.schema import Ledger, Record
from tbkit.view import tables, words


def record_text(record: Record, width: int = tables.TEXT_WIDTH) -> str:
    """Headline, rates, ledgers, gate and warnings as text, no line over ``width`` characters.

    A WRONG run gives the place of the fault and its gate, and no time, rate or speed-up.
    """
    parts = ["\n".join(textwrap.wrap(words.headline(record), width))]
    if not words.is_wrong(record):
        parts.append(tables.rates_table(record).text(width))
        parts += [tables.ledger_table(ledger, record.reality).text(width) for ledger in words.ledgers(record)]
    parts.append(_gate_text(record, width))
    notes = [
        textwrap.fill(text, width, initial_indent="! ", subsequent_indent="  ")
        for text in words.warnings(record)
    ]
    return "\n\n".join(filter(None, [*parts, "\n".join(notes)]))


def summary(record: Record) -> dict[str, Any]:
    """The keys of ``tbkit quickstart --json``: cluster, model, arms, speedup, ledger, gate.

    Rates in tokens/s, times in µs per step. ``arms`` are those of intervention P. A WRONG run has
    empty ``arms`` and ``speedup`` and a ``ledger`` of None; a run without a gate has no verdict (None).
    """
    accounts = words.ledgers(record)
    return {
        "cluster": record.cluster,
        "model": record.model,
        "arms": [
            {"nodes": arm.nodes, "plan": arm.plan, "decode_tok_s": arm.decode_tok_s.value,
             "low": arm.decode_tok_s.low, "high": arm.decode_tok_s.high}
            for arm in words.production_arms(record)
        ],
        "speedup": [
            {"nodes": s.nodes, "plan": s.plan, "value": s.value, "low": s.low, "high": s.high}
            for s in words.speedups(record)
        ],
        "ledger": _ledger_summary(accounts[0]) if accounts else None,
        "gate": _gate_summary(record),
    }  # fmt: skip


def _ledger_summary(ledger: Ledger) -> dict[str, Any]:
    left = ledger.residual
    return {
        "nodes": ledger.nodes,
        "plan": ledger.plan,
        "terms": [
            {"name": t.name, "us": t.us, "low": t.low, "high": t.high, "share": t.share} for t in ledger.terms
        ],
        "residual": {"us": left.us, "low": left.low, "high": left.high, "share": left.share,
                     "resolved": left.resolved, "blocks_needed": left.blocks_needed},
    }  # fmt: skip


def _gate_summary(record: Record) -> dict[str, Any]:
    checks = [
        {"nodes": gate.nodes, "plan": gate.plan, "name": check.name, "ok": check.ok, "words": check.words}
        for gate in words.reading_order(record.gates)
        for check in gate.checks
    ]
    verdict = "WRONG" if words.is_wrong(record) else "OK" if record.gates else None
    return {"verdict": verdict, "checks": checks}


def _gate_text(record: Record, width: int) -> str:
    if not record.gates:
        return "Gate: no plan was checked"
    if words.is_wrong(record):
        return tables.gate_table(record.gates).text(width)
    plans = [f"{words.nodes_text(gate.nodes)} {gate.plan}" for gate in words.reading_order(record.gates)]
    checks = sum(len(gate.checks) for gate in record.gates)
    return "\n".join(textwrap.wrap(f"Gate: OK, {checks} checks ({', '.join(plans)})", width))
