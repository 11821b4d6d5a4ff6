"""The one-file report of a run: a page that opens anywhere, asks no network and needs no kernel.

plotly.js stands in it once; a content security policy in the page itself forbids every connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from tbkit.record.provenance import versions
from tbkit.record.schema import Ledger, Record
from tbkit.record.store import whole_file
from tbkit.view import figures, style, tables, words

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 $font; color: $ink; background: $paper; max-width: 1000px; margin: 0 auto;
  padding: 28px 24px 64px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 40px 0 8px; padding-top: 14px; border-top: 1px solid $rule; }
.facts { color: $muted; margin: 0 0 18px; }
.headline { font-size: 18px; line-height: 1.45; margin: 0 0 8px; }
.wrong { border-left: 5px solid #b42318; background: #fdf1ef; padding: 12px 16px; }
.warnings { border-left: 5px solid #b7791f; background: #fdf8ec; padding: 8px 16px 8px 34px; margin: 14px 0; }
.badge { display: inline-block; border: 1px solid $muted; border-radius: 4px; padding: 0 7px;
  font-size: 13px; }
.scroll { overflow-x: auto; font-size: 14px; }
.figure { overflow-x: auto; }
</style>
</head>
<body>
$body
</body>
</html>
""")
_METHOD = (
    "Tokens are teacher-forced, so every arm does the same work. Arms that need no reloading are measured in "
    "randomised blocks inside one load; the unit of an interval is the block (or the load), never the step.",
    "A step time is the median over the steps of a block, of the slowest rank; a maximum over ranks is taken "
    "with split steps: odd steps choose the slowest rank, even steps measure it.",
    "Intervals are 95 %: Student's t on logarithms for times and rates up to 50 units, a studentised "
    "bootstrap above; terms of the ledger are paired differences within a block. A speed-up is T₁/Tₚ, its "
    "base beside it.",
    "Correctness gates speed: no rate is printed unless every part of the model has one owner and the logits "
    "agree with one node's.",
)


def write_report(record: Record, path: str | Path, environment: Mapping[str, Any] | None = None) -> Path:
    """Write the report of ``record`` to ``path`` (one HTML file, about 5 MB) and return the path.

    ``environment`` is the run's ``environment.json`` (``tbkit.record.read_environment``); without it
    the versions are this process's and the page says so. Raises ``InputError`` where ``path`` cannot
    be written; the file is replaced whole or not at all.
    """
    target = Path(path).expanduser()
    page = report_html(record, environment).encode()
    with whole_file(target) as file:
        file.write(page)
    return target


def report_html(record: Record, environment: Mapping[str, Any] | None = None) -> str:
    """The page as text; see :func:`write_report`."""
    sections = [_head(record)]
    if not words.is_wrong(record):
        sections += [_speedups(record), *_accounts(record)]
    sections += [_gate(record), _factors(record), _method(record), _versions(environment)]
    return _PAGE.substitute(
        title=escape(f"{record.workload} of {record.model}: {record.id}"), font=style.FONT, ink=style.INK,
        paper=style.PAPER, rule=style.RULE, muted=style.MUTED, body="\n".join(sections),
    )  # fmt: skip


def _head(record: Record) -> str:
    wrong = " wrong" if words.is_wrong(record) else ""
    others = [] if wrong else [words.speedup_sentence(s) for s in words.speedups(record)]
    shown = words.headline(record)
    others = [text for text in others if not shown.startswith(text)]
    source = f"{words.REALITY.get(record.reality, '')}; run {record.id}, {record.created}"
    lines = [
        f"<h1>{escape(record.workload)} of {escape(record.model)}</h1>",
        f'<p class="facts"><span class="badge">{escape(record.reality)}</span> {escape(source)}</p>',
        f'<p class="headline{wrong}">{escape(shown)}.</p>',
        "".join(f"<div>{escape(text)}.</div>" for text in others),
        _warnings(record),
    ]
    return "\n".join(filter(None, lines))


def _warnings(record: Record) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in words.warnings(record))
    return f'<ul class="warnings">{items}</ul>' if items else ""


def _speedups(record: Record) -> str:
    parts = [_plot(figures.speedup_figure(record), "speedup", first=True)] if words.speedups(record) else []
    return _section(
        "Speed-up", *parts, _scroll(tables.rates_table(record)), _scroll(tables.arms_table(record))
    )


def _accounts(record: Record) -> Iterator[str]:
    first = not words.speedups(record)
    for i, ledger in enumerate(words.ledgers(record)):
        figure = figures.ledger_figure(ledger, record.reality, record.model)
        yield _section(_ledger_heading(ledger), _plot(figure, f"ledger{i}", first=first and i == 0),
                       _scroll(tables.ledger_table(ledger, record.reality)))  # fmt: skip


def _ledger_heading(ledger: Ledger) -> str:
    return f"Where the time goes: {words.nodes_text(ledger.nodes)}, {ledger.plan}"


def _gate(record: Record) -> str:
    verdicts = [
        f"{words.nodes_text(g.nodes)}, {g.plan}: {g.verdict}" for g in words.reading_order(record.gates)
    ]
    said = "; ".join(verdicts) or "No plan was checked"
    parts = [_scroll(tables.gate_table(record.gates, record.reality))] if record.gates else []
    return _section("Gate", f"<p>{escape(said)}.</p>", *parts)


def _factors(record: Record) -> str:
    facts = {"state": record.state, "reality": record.reality} | record.factors
    return _section("Every factor of the run", _scroll(tables.facts_table("Factors", facts)),
                    _scroll(tables.facts_table("Cluster", record.cluster)))  # fmt: skip


def _method(record: Record) -> str:
    paragraphs = [f"<p>{escape(text)}</p>" for text in _METHOD]
    blocks = sorted({(arm.blocks, arm.steps_a_block) for arm in record.arms})
    sizes = "; ".join(f"{blocks} blocks of {steps} steps" for blocks, steps in blocks)
    return _section("How it was measured", f"<p>An arm: {escape(sizes)}.</p>" if sizes else "", *paragraphs)


def _versions(environment: Mapping[str, Any] | None) -> str:
    if environment:
        return _section("Where it was made", _scroll(tables.facts_table("Environment", environment)))
    note = "<p>The run kept no environment; these are the versions that wrote this page.</p>"
    return _section("Versions", note, _scroll(tables.facts_table("Versions", versions())))


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(filter(None, parts)) + "\n</section>"


def _scroll(table: tables.Table) -> str:
    return f'<div class="scroll">{table.html()}</div>' if table.rows else ""


def _plot(figure: Any, name: str, first: bool) -> str:
    config = {"displaylogo": False, "displayModeBar": False, "responsive": False}
    html = figure.to_html(full_html=False, include_plotlyjs=first, config=config, div_id=name)
    return f'<div class="figure">{html}</div>'
