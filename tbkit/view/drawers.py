"""What each type looks like when displayed: a headline, its tables, its figure."""

from __future__ import annotations

from html import escape
from typing import Any

from tbkit.record.schema import Gate, Ledger, Record
from tbkit.show import Drawing
from tbkit.view import figures, tables, text, words


def draw_record(shown: Any) -> Drawing:
    """A :class:`Record`, or an object that holds one as ``record``: headline, speed-up, rates, gate."""
    record: Record = getattr(shown, "record", shown)
    wrong = words.is_wrong(record)
    drawn = not wrong and bool(words.speedups(record))

    def html(picture: str) -> str:
        parts = [f"<p><b>{escape(words.headline(record))}.</b></p>", picture]
        parts += [] if wrong else [tables.rates_table(record).html()]
        parts += [tables.gate_table(record.gates, record.reality).html()] if record.gates else []
        parts += [f"<div>! {escape(warning)}</div>" for warning in words.warnings(record)]
        return _page(*parts)

    figure = (lambda: figures.speedup_figure(record)) if drawn else None
    return Drawing(text.record_text(record), html, figure, words.headline(record))


def draw_explanation(shown: Any) -> Drawing:
    """An explanation: its words, the ledger of each plan that has one, the next experiment."""
    if not shown.ledgers:
        return Drawing(shown.words, lambda _: _page(f"<p>{escape(shown.words)}</p>"))
    drawings = [draw_ledger(ledger) for ledger in shown.ledgers]

    def html(picture: str) -> str:
        pictures = [picture, *[""] * (len(drawings) - 1)]
        accounts = [drawing.html(image) for drawing, image in zip(drawings, pictures, strict=True)]
        said = f"<p><b>{escape(shown.words)}</b></p>"
        return _page(said, *accounts, f"<p>Next: {escape(shown.next_experiment)}</p>")

    text = "\n\n".join([shown.words, *(d.text for d in drawings), f"Next: {shown.next_experiment}"])
    return Drawing(text, html, drawings[0].figure, drawings[0].alt)


def draw_ledger(ledger: Ledger) -> Drawing:
    """A :class:`Ledger`: its waterfall and its table."""
    reality = getattr(ledger, "reality", "")
    table = tables.ledger_table(ledger, reality)
    alt = f"{table.title}: {words.loss_sentence(ledger)}"
    return Drawing(
        table.text(),
        lambda picture: _page(picture, table.html()),
        lambda: figures.ledger_figure(ledger, reality),
        alt,
    )


def draw_gate(gate: Gate) -> Drawing:
    """A :class:`Gate`: verdict and checks."""
    table = tables.gate_table([gate])
    return Drawing(table.text(), lambda _: _page(table.html()))


def draw_plans(plans: Any) -> Drawing:
    """Plans, from their ``rows()``; as text they are their own ``str``."""
    rows = [
        {
            "kind": row["kind"],
            "fits": {True: "yes", False: "no", None: "?"}[row["fits"]],
            "split, or why not": row["split"] or row["reason"],
        }
        for row in plans.rows()
    ]
    table = tables.rows_table(f"Plans of {plans.facts.name} on {words.nodes_text(plans.nodes)}", rows)
    return Drawing(str(plans), lambda _: _page(table.html()))


def draw_cluster(cluster: Any) -> Drawing:
    """A cluster, from its ``status()``; as text it is its own ``str``."""
    rows = [
        {
            "rank": row["rank"],
            "node": row["node"],
            "engine": f"{row['engine']} (pid {row['engine_pid']})",
            "rank process": f"{row['rank_process']} (pid {row['rank_pid']})",
        }
        for row in cluster.status()
    ]
    table = tables.rows_table(
        f"Cluster: {words.nodes_text(cluster.size)}, {words.reality_text(cluster.reality)}", rows
    )
    return Drawing(str(cluster), lambda _: _page(table.html()))


def draw_measurement(measured: Any) -> Drawing:
    """A measurement of links: its tables, what stands out, and for cards the figure."""
    from tbkit.view import links  # the cards bring numpy with them

    found, cards = links.tables_of(measured), getattr(measured, "cards", ())
    said = links.said(measured)

    def html(picture: str) -> str:
        lines = [f"<div>! {escape(line)}</div>" for line in said]
        return _page(picture, *(table.html() for table in found), *lines)

    figure = (lambda: links.links_figure(cards, measured.reality)) if cards else None
    alt = "; ".join([found[-1].title, *said])
    return Drawing(links.measurement_text(measured), html, figure, alt)


def draw_link_card(card: Any) -> Drawing:
    """One cable: perftest's tables of both ways and the figure."""
    from tbkit.view import links

    found = [links.summary_table([card], card.reality), *links.card_tables(card)]
    text = "\n\n".join(table.text(links.WIDTH) for table in found)
    return Drawing(
        text,
        lambda picture: _page(picture, *(table.html() for table in found)),
        lambda: links.links_figure([card], card.reality),
        f"link card of {card.name}",
    )


def draw_finding(finding: Any) -> Drawing:
    """A cable that is not like the others, in words."""
    return Drawing(finding.words, lambda _: _page(f"<p>{escape(finding.words)}</p>"))


def _page(*parts: str) -> str:
    return f'<div class="tbkit">{"".join(parts)}</div>'
