"""Tables of a record, each once, for a page and for a terminal.

A :class:`Table` renders as HTML (styled in place, for a notebook keeps no style sheet) and as aligned
text. Values carry their unit and their 95 % interval. Reading order: 2 nodes, then 1, then the others.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tbkit import units
from tbkit.record.schema import Arm, Gate, Ledger, Record
from tbkit.view import words

TEXT_WIDTH = 100
_CELL = "padding:3px 14px 3px 0;border-bottom:1px solid rgba(128,136,144,.35);vertical-align:top;"
_ALARMS = ("WRONG", "FAILED")
_GAP = "  "
_LEAST_WRAPPED = 16


@dataclass(frozen=True)
class Table:
    """Rows of texts under columns. ``numeric`` columns stand right; the last column wraps in text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = field(default_factory=frozenset)
    note: str = ""

    def html(self) -> str:
        """An HTML fragment; every cell escaped."""
        head = "".join(self._cell("th", i, text) for i, text in enumerate(self.columns))
        body = "".join(
            "<tr>" + "".join(self._cell("td", i, text) for i, text in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        style = "border-collapse:collapse;font-variant-numeric:tabular-nums;text-align:left;margin:.3em 0"
        return (
            f'<div style="margin:1em 0"><b>'
            f"{escape(self.title)}</b>"
            f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
            f"{_note_html(self.note)}</div>"
        )

    def text(self, width: int = TEXT_WIDTH) -> str:
        """Aligned text, no line longer than ``width`` characters."""
        widths = self._widths(width)
        lines = [self.title, *self._lines(self.columns, widths), _GAP.join("-" * w for w in widths)]
        for row in self.rows:
            lines += self._lines(row, widths)
        return "\n".join([*lines, *(textwrap.wrap(self.note, width) if self.note else [])])

    def _cell(self, tag: str, column: int, text: str) -> str:
        align = "right" if column in self.numeric else "left"
        alarm = "color:#b42318;font-weight:600;" if text in _ALARMS else ""
        wraps = column == len(self.columns) - 1 and column not in self.numeric
        wrap = "" if wraps else "white-space:nowrap;"
        return f'<{tag} style="{_CELL}{wrap}{alarm}text-align:{align}">{escape(text)}</{tag}>'

    def _widths(self, width: int) -> list[int]:
        found = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        over = sum(found) + len(_GAP) * (len(found) - 1) - width
        if over > 0:
            found[-1] = max(_LEAST_WRAPPED, found[-1] - over)
        return found

    def _lines(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        last = textwrap.wrap(row[-1], widths[-1]) or [""]
        first = [text.rjust(w) if i in self.numeric else text.ljust(w)
                 for i, (text, w) in enumerate(zip(row, widths, strict=True))][:-1]  # fmt: skip
        blank = [" " * w for w in widths[:-1]]
        tail = [part.rjust(widths[-1]) if len(row) - 1 in self.numeric else part for part in last]
        return [_GAP.join([*(blank if i else first), part]).rstrip() for i, part in enumerate(tail)]


def arms_table(record: Record) -> Table:
    """Step time of every arm, interventions too, with what each did; empty for a WRONG run."""
    arms = [] if words.is_wrong(record) else words.reading_order(record.arms)
    columns = (
        "nodes",
        "plan",
        "arm",
        "time per step",
        "decode rate",
        "blocks × steps",
        "collectives",
        "warm-up",
    )
    rows = [
        (str(arm.nodes), arm.plan, arm.intervention, _step(arm), _rate(arm),
         f"{arm.blocks} × {arm.steps_a_block}", _collectives(arm), _stable(arm))
        for arm in arms
    ]  # fmt: skip
    note = f"95 % intervals; collectives per step. {words.reality_text(record.reality)}."
    return Table("Arms", columns, rows, frozenset({0, 3, 4, 5}), note)


def rates_table(record: Record) -> Table:
    """Rate, step time and speed-up of every plan, production step: the answer at a glance."""
    found = {(s.nodes, s.plan): units.speedup_text(s) for s in words.speedups(record)}
    rows = [
        (str(arm.nodes), arm.plan, units.rate_text(arm.decode_tok_s), _step(arm),
         found.get((arm.nodes, arm.plan), "base" if arm.nodes == 1 else "–"))
        for arm in words.production_arms(record)
    ]  # fmt: skip
    note = f"95 % intervals; {words.base_text(record)}. {words.reality_text(record.reality)}."
    columns = ("nodes", "plan", "decode rate", "time per step", "speed-up")
    return Table(f"{record.workload} of {record.model}", columns, rows, frozenset({0, 2, 3, 4}), note)


def ledger_table(ledger: Ledger, reality: str = "") -> Table:
    """Every term with interval, share of T_p - T_1/p, second source and words; residual and sum last."""
    total = ledger.step_us
    scale = total.value
    gap = total.value - ledger.ideal_us
    rows = [
        (t.name, units.time_interval_text(t.us, t.low, t.high, True, scale), units.percent_text(t.share),
         words.second_text(t, scale), t.words + (f" (second: {t.second_source})" if t.second else ""))
        for t in ledger.terms
    ]  # fmt: skip
    left = ledger.residual
    residual = units.time_interval_text(left.us, left.low, left.high, True, scale)
    status = "; ".join(filter(None, (words.residual_text(left), left.words)))
    rows.append(("residual", residual, units.percent_text(left.share), "", status))
    size, unit = units.time_unit(scale)
    summed = f"{units.number(gap / size, units.significant_places(scale / size), True)} {unit}"
    rows.append((f"T{ledger.nodes} − T1/{ledger.nodes}", summed, "100 %", "", _closing(ledger)))
    note = (
        f"Times per step, 95 % intervals {ledger.interval_scope}; the residual is beside the sum, not in it."
    )
    note += f" {words.reality_text(reality)}." if reality else ""
    title = f"Ledger: {words.nodes_text(ledger.nodes)}, {ledger.plan}"
    columns = ("term", "time per step", "share", "second source", "what it is")
    return Table(title, columns, rows, frozenset({1, 2, 3}), note)


def gate_table(gates: Iterable[Gate], reality: str = "") -> Table:
    """Every check of every plan with its verdict, the WRONG plans first."""
    ordered = sorted(words.reading_order(gates), key=lambda gate: gate.verdict == "OK")
    rows = [
        (str(gate.nodes), gate.plan, gate.verdict, check.name, "ok" if check.ok else "FAILED", check.words)
        for gate in ordered
        for check in gate.checks
    ]
    columns = ("nodes", "plan", "verdict", "check", "result", "evidence")
    return Table("Gate", columns, rows, frozenset({0}), f"{words.reality_text(reality)}." if reality else "")


def facts_table(title: str, facts: Mapping[str, Any]) -> Table:
    """Names and values of a mapping, in its order; nested mappings under dotted names."""
    rows = [(name, _plain(value)) for name, value in _flat(facts)]
    return Table(title, ("factor", "value"), rows)


def rows_table(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> Table:
    """A table of dicts: the columns are their keys in order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = frozenset(
        i for i, key in enumerate(columns) if all(isinstance(row.get(key), int | float) for row in rows)
    )
    return Table(title, columns, [[_plain(row.get(key)) for key in columns] for row in rows], numeric, note)


def _step(arm: Arm) -> str:
    return units.time_interval_text(arm.step_us.value, arm.step_us.low, arm.step_us.high)


def _rate(arm: Arm) -> str:
    """Only the production step has a rate; an intervention's step makes no token that counts."""
    return units.rate_text(arm.decode_tok_s) if arm.intervention == words.PRODUCTION else "–"


def _collectives(arm: Arm) -> str:
    if not arm.collectives_a_step:
        return "none"
    return f"{arm.collectives_a_step}, {units.gb_text(arm.bytes_a_step)}"


def _stable(arm: Arm) -> str:
    spread = units.percent_text(arm.spread, 1)
    return f"stable ({spread})" if arm.stable else f"not stable ({spread})"


def _closing(ledger: Ledger) -> str:
    total, ideal = units.time_text(ledger.step_us.value), units.time_text(ledger.ideal_us)
    return f"{total} measured, {ideal} ideal"


def _note_html(note: str) -> str:
    return f'<div style="opacity:.75;font-size:90%">{escape(note)}</div>' if note else ""


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}"
        found += _flat(value, f"{name}.") if isinstance(value, Mapping) and value else [(name, value)]
    return found


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    return units.number(value) if isinstance(value, float) and abs(value) < 1e6 else str(value)
