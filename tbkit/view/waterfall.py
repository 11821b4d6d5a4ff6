"""The ledger as a waterfall: from the ideal time through every term to the measured one.

Numbers are the ledger's; none is made here. plotly loads when a figure is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any, NamedTuple

from tbkit import units
from tbkit.record.schema import Ledger, Term
from tbkit.view import style, words

_OPEN = 0.005  # of T_p: a sum of terms further from it is drawn as not closed


def ledger_figure(ledger: Ledger, reality: str = "", model: str = "") -> Any:
    """Waterfall from the ideal time T_1/p through each term to the measured T_p, time per step.

    Whiskers are 95 % intervals. Below a rule, apart: the residual, from where the second sources
    reach to T_p. ``reality`` is the record's word, written on the figure.
    """
    import plotly.graph_objects as go

    size, unit = units.time_unit(ledger.step_us.value)
    rows = ledger_rows(ledger)
    start, end = _span(rows, size)
    figure = go.Figure([*_bars(rows, size), _whiskers(rows, size), _second_sources(rows, size)])
    last = len(rows) - 1
    figure.update_layout(
        style.layout(*_ledger_title(ledger, reality, model), margin={"l": 128, "r": 268, "t": 134, "b": 62}),
        xaxis=style.axis(_axis_title(start, unit), range=[start, end], tickformat=",~r"),
        yaxis=style.axis("", range=[last + 0.62, -0.62], tickvals=list(range(len(rows))), ticks="",
                         ticktext=[row.label for row in rows], showgrid=False, zeroline=False),
        barmode="overlay",
        showlegend=False,
        shapes=[*_connectors(rows, size), _rule(last - 0.5)],
        annotations=[_key(rows), *_columns(rows, ledger.step_us.value), *_cuts(rows, start)],
    )  # fmt: skip
    return figure


class Row(NamedTuple):
    """One bar, in µs: from ``start`` to ``start + us``; the interval is that of ``us``."""

    label: str
    role: str  # ideal, loss, gain, untold, measured, residual
    start: float
    us: float
    low: float
    high: float
    share: float | None
    term: Term | None = None
    remark: str = ""


def ledger_rows(ledger: Ledger) -> list[Row]:
    """The bars of the waterfall in order: ideal, terms, T_p, residual. Times in µs per step.

    Terms that do not add up to T_p - T_1/p get a bar of their own, "not closed".
    """
    p, single, total = ledger.nodes, ledger.single_us, ledger.step_us
    rows = [Row(f"ideal T₁/{p}", "ideal", 0.0, ledger.ideal_us, single.low / p, single.high / p, None)]
    at = ledger.ideal_us
    for term in ledger.terms:
        rows.append(Row(term.name, _role(term.us, term.low, term.high), at, term.us, term.low, term.high,
                        term.share, term))  # fmt: skip
        at += term.us
    if abs(total.value - at) > _OPEN * total.value:
        rest = total.value - at
        rows.append(
            Row(
                "not closed",
                _role(rest, rest, rest),
                at,
                rest,
                rest,
                rest,
                rest / (total.value - ledger.ideal_us),
            )
        )
    rows.append(Row(f"measured T{_subscript(p)}", "measured", 0.0, total.value, total.low, total.high, None))
    left = ledger.residual
    rows.append(Row("residual", "residual", total.value - left.us, left.us, left.low, left.high, left.share,
                    remark="" if left.resolved else "not resolved"))  # fmt: skip
    return rows


_LOOKS = {
    "ideal": ("ideal", style.IDEAL, ""),
    "loss": ("loss", style.LOSS, ""),
    "gain": ("gain", style.GAIN, ""),
    "untold": ("interval covers 0", style.UNTOLD, "/"),
    "measured": ("measured", style.MEASURED, ""),
    "residual": ("residual", style.RESIDUAL, ""),
}


def _role(us: float, low: float, high: float) -> str:
    if low <= 0 <= high:
        return "untold"
    return "loss" if us > 0 else "gain"


def _subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _bars(rows: Sequence[Row], size: float) -> list[Any]:
    import plotly.graph_objects as go

    bars = []
    for role, (name, colour, pattern) in _LOOKS.items():
        mine = [(i, row) for i, row in enumerate(rows) if row.role == role]
        if not mine:
            continue
        bars.append(go.Bar(
            x=[row.us / size for _, row in mine], base=[row.start / size for _, row in mine],
            y=[i for i, _ in mine], orientation="h", width=0.56, marker=_fill(colour, pattern), name=name,
            hovertext=[_hover(row) for _, row in mine], hoverinfo="text",
        ))  # fmt: skip
    return bars


def _fill(colour: str, pattern: str) -> dict[str, Any]:
    plain = {"color": colour, "line": {"color": style.INK, "width": 0.5}}
    if not pattern:
        return plain
    hatch = {"shape": pattern, "fgcolor": "#6b747d", "bgcolor": colour, "size": 7, "solidity": 0.25}
    return plain | {"pattern": hatch}


def _hover(row: Row) -> str:
    said = row.term.words if row.term else row.remark
    time = units.time_interval_text(row.us, row.low, row.high, _is_term(row))
    return "<br>".join(filter(None, (f"{row.label}: {time}", said)))


def _whiskers(rows: Sequence[Row], size: float) -> Any:
    """Intervals at the moving end of each bar; a residual moves at its start, for it ends at T_p."""
    import plotly.graph_objects as go

    ends = [(row.start + (0 if row.role == "residual" else row.us)) / size for row in rows]
    sides = [(row.us - row.low, row.high - row.us) for row in rows]
    sides = [side[::-1] if row.role == "residual" else side for row, side in zip(rows, sides, strict=True)]
    bars = style.error_bars([low / size for low, _ in sides], [high / size for _, high in sides], style.INK)
    return go.Scatter(
        x=ends, y=list(range(len(rows))), mode="markers", marker={"size": 1, "color": style.INK},
        error_x=bars | {"width": 5}, name="95 % interval", hoverinfo="skip",
    )  # fmt: skip


def _second_sources(rows: Sequence[Row], size: float) -> Any:
    """The second source's value just under its bar, from where the bar starts."""
    import plotly.graph_objects as go

    found = [(i, row.start, row.term.second) for i, row in enumerate(rows) if row.term and row.term.second]
    minus = [(second.value - second.low) / size for _, _, second in found]
    plus = [(second.high - second.value) / size for _, _, second in found]
    open_mark = {
        "symbol": "diamond",
        "size": 8,
        "color": style.PAPER,
        "line": {"color": style.INK, "width": 1.5},
    }
    return go.Scatter(
        x=[(start + second.value) / size for _, start, second in found],
        y=[i + 0.36 for i, _, _ in found], mode="markers", marker=open_mark, name="second source",
        hoverinfo="x+name", error_x=style.error_bars(minus, plus, style.MUTED) | {"width": 3, "thickness": 1},
    )  # fmt: skip


def _connectors(rows: Sequence[Row], size: float) -> list[dict[str, Any]]:
    """Thin rules that carry the running sum from one bar to the next, ideal to T_p."""
    steps = [row for row in rows if row.role != "residual"]
    line = {"color": style.MUTED, "width": 0.8, "dash": "dot"}
    return [
        {"type": "line", "x0": (row.start + row.us) / size, "x1": (row.start + row.us) / size,
         "y0": i + 0.28, "y1": i + 0.72, "line": line, "layer": "below"}
        for i, row in enumerate(steps[:-1])
    ]  # fmt: skip


def _rule(y: float) -> dict[str, Any]:
    line = {"color": style.MUTED, "width": 1}
    return {"type": "line", "xref": "paper", "x0": -0.14, "x1": 1.4, "y0": y, "y1": y, "line": line}


def _span(rows: Sequence[Row], size: float) -> tuple[float, float]:
    """The time axis in units of ``size`` µs.

    It starts at 0 while the gap is at least 2/5 of it, else at a round number below the ideal: the
    terms are what the figure is for. The axis title and a mark on the long bars say so.
    """
    bars = [edge / size for row in rows for edge in (row.start, row.start + row.us)]
    beyond = 0.5 * rows[-2].us / size  # of a whisker: a wide one is cut, and its figures stand beside it
    least, most = min(bars) - beyond, max(bars) + beyond
    edges = [min(max(edge / size, least), most) for row in rows for edge in _edges(row)]
    ideal, total, longest = rows[0].us / size, rows[-2].us / size, max(edges)
    lowest = min(ideal, total, *(edge for edge in edges if edge > 0))
    width = longest - lowest
    if width >= 0.4 * longest or min(edges) < 0:
        return min(0.0, *edges), longest + 0.03 * longest
    step = 10.0 ** floor(log10(width))
    return max(0.0, floor((lowest - 0.12 * width) / step) * step), longest + 0.03 * width


def _axis_title(start: float, unit: str) -> str:
    return f"time per step ({unit})" + (
        f"; the axis starts at {start:g} {unit}, not at 0" if start > 0 else ""
    )


def _key(rows: Sequence[Row]) -> dict[str, Any]:
    """What the colours mean, as one line of text: a legend of plotly's would wrap over the subtitle."""
    roles = {row.role for row in rows}
    looks = [
        (name, colour, "▨" if pattern else "■")
        for role, (name, colour, pattern) in _LOOKS.items()
        if role in roles
    ]
    looks += [("second source", style.INK, "◇")] if any(row.term and row.term.second for row in rows) else []
    text = "&nbsp;&nbsp;&nbsp;&nbsp;".join(
        f"<span style='color:{colour};font-size:16px'>{sign}</span> {name}" for name, colour, sign in looks
    )
    place = {
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": -114,
        "yshift": 22,
    }
    return style.note(text, 0, 1, **place)


def _cuts(rows: Sequence[Row], start: float) -> list[dict[str, Any]]:
    """Two slanted strokes on the bars whose beginning the axis leaves out."""
    if start <= 0:
        return []
    font = {"size": 20, "color": style.PAPER}
    cut = [i for i, row in enumerate(rows) if row.role in ("ideal", "measured")]
    return [style.note("<b>//</b>", 0, i, xref="paper", xanchor="left", xshift=10, font=font) for i in cut]


def _edges(row: Row) -> list[float]:
    second = row.term.second if row.term else None
    found = [row.start, row.start + row.us]
    found += [row.start - row.high + row.us, row.start - row.low + row.us] if row.role == "residual" else [
        row.start + row.low, row.start + row.high]  # fmt: skip
    return found + ([row.start + second.low, row.start + second.high] if second else [])


def _columns(rows: Sequence[Row], scale_us: float) -> list[dict[str, Any]]:
    """Value with interval and share of the gap as two columns right of the bars."""
    unit = units.time_unit(scale_us)[1]
    left = {"xref": "paper", "xanchor": "left", "xshift": 12}
    right = left | {"xanchor": "right", "xshift": 256}
    head = {"yref": "paper", "yanchor": "bottom", "font": {"size": 12, "color": style.MUTED}}
    notes = [
        style.note(f"{unit} per step [95 %]", 1, 1, **left | head),
        style.note("share", 1, 1, **right | head),
    ]
    for i, row in enumerate(rows):
        notes.append(style.note(_time(row, scale_us).replace(f" {unit} [", " ["), 1, i, **left))
        notes.append(style.note(row.remark, 1, i, **left, yshift=-14))
        if row.share is not None:
            notes.append(style.note(units.percent_text(row.share), 1, i, **right))
    return [one for one in notes if one["text"]]


def _time(row: Row, scale_us: float) -> str:
    return units.time_interval_text(row.us, row.low, row.high, _is_term(row), scale_us)


def _is_term(row: Row) -> bool:
    """Whether the bar is a difference, which carries its sign, and not a time of its own."""
    return row.role not in ("ideal", "measured")


def _ledger_title(ledger: Ledger, reality: str, model: str) -> tuple[str, str]:
    gap = ledger.step_us.value - ledger.ideal_us
    side = f"{units.time_text(abs(gap))} a step {'above' if gap >= 0 else 'below'} ideal"
    title = f"Where the time of {words.nodes_text(ledger.nodes)} goes: {ledger.plan}, {side}"
    single = ledger.single_us
    base = units.time_interval_text(single.value, single.low, single.high)
    parts = [model, f"T₁ = {base} per step", f"95 % intervals {ledger.interval_scope}"]
    return title, "; ".join(filter(None, parts)) + f"<br>{words.reality_text(reality)}"
