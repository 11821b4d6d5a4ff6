"""Link cards and the micro suite: perftest's and nccl-tests' tables, and latency and bandwidth over size.

A time keeps three significant digits and at least two decimal places: 0.114 µs is not 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

from tbkit import units
from tbkit.fabric.cards import Cards, Collectives, Crossing, Direction, LinkCard
from tbkit.fabric.cards.schema import GB, MIB
from tbkit.stats import Interval
from tbkit.view import style, words
from tbkit.view.tables import Table

WIDTH = 178  # perftest's lines are wide
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1b1f24")
_DASHES, _SYMBOLS = ("solid", "dot"), ("circle", "diamond-open")
_LEFT, _RIGHT, _WHOLE = (0.0, 0.42), (0.55, 0.97), (0.0, 0.97)
_PERFTEST = "MB is 2^20 bytes and Mpps 10^6 messages a second, as perftest counts"


def digits(value: float) -> str:
    """At least two decimal places, at least three significant digits."""
    return units.number(value, max(2, units.significant_places(value)))


def card_tables(card: LinkCard) -> list[Table]:
    """perftest's tables of one cable: latencies and streams of each way, then both ways at once."""
    found = []
    for way in card.directions:
        title = f"{card.name} ({card.carrier}), from {way.source} to {way.target}"
        if way.latency:
            rows = [(row.columns(), row.block_us.low, row.block_us.high) for row in way.latency]
            found.append(_perftest(f"{title}: half a round trip", rows, "95 % of block medians[usec]"))
        if way.bandwidth:
            found.append(_stream_table(f"{title}: stream, timed at {way.target}", way.bandwidth))
    if card.both_ways:
        found.append(_stream_table(f"{card.name} ({card.carrier}): both ways at once, added", card.both_ways))
    return found


def _stream_table(title: str, rows: Sequence[Any]) -> Table:
    found = [
        (row.columns(), row.block_bytes_per_s.low / MIB, row.block_bytes_per_s.high / MIB) for row in rows
    ]
    return _perftest(title, found, "95 % of block averages[MB/sec]", _PERFTEST)


def _perftest(
    title: str, rows: Sequence[tuple[dict[str, Any], float, float]], interval: str, note: str = ""
) -> Table:
    columns = (*rows[0][0], interval)
    cells = [
        (
            *(str(x) if isinstance(x, int) else digits(x) for x in row.values()),
            f"[{digits(low)}, {digits(high)}]",
        )
        for row, low, high in rows
    ]
    return Table(title, columns, cells, frozenset(range(len(columns))), note)


def summary_table(cards: Sequence[LinkCard], reality: str) -> Table:
    """One row a direction: α, β, pieces, jitter of the smallest message, stream, message rate."""
    ways = [(card, way) for card in cards for way in card.directions]
    rows = [
        {"cable": card.name, "from": way.source}
        | _latency_cells(way)
        | _stream_cells(way)
        | _both_cells(card)
        for card, way in ways
    ]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[row.get(key, "–") for key in columns] for row in rows]
    note = (
        "95 % intervals over blocks; α and β of a single message, the stream of the largest, timed where it "
    )
    note += f"arrives; GB is 10^9 bytes. {words.reality_text(reality)}."
    return Table("Link cards", columns, cells, frozenset(range(2, len(columns))), note)


def _latency_cells(way: Direction) -> dict[str, str]:
    if not way.latency:
        return {}
    row = way.latency[0]
    tail = (row.t_typical_us, row.p90_us, row.p99_us, row.p99_9_us, row.t_max_us)
    found = {"α": "–", "β": "–", "breaks": "–"}
    if way.fit and way.alpha_us:
        alpha, beta = way.alpha_us, way.beta_bytes_per_s
        found["α"] = units.interval_text(alpha.value, alpha.low, alpha.high, "µs", least=2)
        found["β"] = _rate_text(beta) if beta else "not told from ∞"
        breaks = [f"{size_text(low)} to {size_text(high)}" for low, high in way.fit.breakpoints_bytes]
        worst = max(map(abs, way.fit.residuals))
        found["breaks"] = f"{'; '.join(breaks) or 'none'} (± {units.percent_text(worst, 1)})"
    return found | {f"p50 p90 p99 p99.9 max [µs], {row.bytes} B": " ".join(map(digits, tail))}


def _stream_cells(way: Direction) -> dict[str, str]:
    stream, rate = way.stream, way.message_rate
    if stream is None or rate is None:
        return {}
    return {
        "stream": _rate_text(stream.block_bytes_per_s),
        "messages": f"{digits(rate.value / 1e6)} Mpps",
    }


def _both_cells(card: LinkCard) -> dict[str, str]:
    return {"both ways": _rate_text(card.both_ways[-1].block_bytes_per_s)} if card.both_ways else {}


def _rate_text(rate: Interval) -> str:
    return units.interval_text(rate.value / GB, rate.low / GB, rate.high / GB, "GB/s", least=2)


def collectives_table(found: Collectives) -> Table:
    """nccl-tests' columns; behind them what one cable and the whole mesh could carry."""
    names = {"size": "size(B)", "count": "count(elements)", "time": "time(us)"}
    rates = ("algbw", "busbw", "one cable", "mesh limit")
    rows = []
    for row, size in zip(found.rows(), found.sizes, strict=True):
        cells = [
            str(x) if isinstance(x, int | str) else "–" if x is None else digits(x) for x in row.values()
        ]
        rows.append([*cells, f"[{digits(size.time_us.low)}, {digits(size.time_us.high)}]"])
    columns = [names.get(key, f"{key}(GB/s)" if key in rates else key) for key in found.rows()[0]]
    ranks = len(found.nodes)
    note = "Out of place; time: median of the slowest rank, 95 % interval over blocks. GB is 10^9 bytes. busbw: as if "
    note += f"each rank had one exit; the mesh limit is {ranks - 1} × the slowest cable, measured alone at 1 MiB. "
    note += f"{words.reality_text(found.reality)}."
    title = f"all_reduce over {ranks} ranks ({found.carrier})"
    return Table(title, [*columns, "95 % of time(us)"], rows, frozenset(range(len(columns) + 1)), note)


def crossing_table(found: Crossing) -> Table:
    """What one cut costs, by node and width."""
    rows = [
        (cut.node, str(cut.width), str(cut.pieces), digits(cut.whole_us.value), digits(cut.cut_us.value),
         units.interval_text(cut.cut_cost_us.value, cut.cut_cost_us.low, cut.cut_cost_us.high, "µs", least=2))
        for cut in found.cuts
    ]  # fmt: skip
    if found.device == "gpu":
        what = "GPU↔CPU fence: evaluated and read by the CPU after each piece"
    else:
        what = "cost of a graph cut on the CPU; what crossing from GPU to CPU costs only a Mac can show"
    note = f"95 % intervals over blocks, paired within a block. {words.reality_text(found.reality)}."
    columns = ("node", "width", "pieces", "whole[usec]", "cut[usec]", "per cut")
    return Table(f"Crossing: {what}", columns, rows, frozenset(range(1, 6)), note)


def tables_of(measured: Any) -> list[Table]:
    """The tables of a measurement, the answer first."""
    if isinstance(measured, Collectives):
        return [collectives_table(measured)]
    if isinstance(measured, Crossing):
        return [crossing_table(measured)]
    assert isinstance(measured, Cards), "every kind of measurement has its tables"
    summary = summary_table(measured.cards, measured.reality)
    if measured.what == "cards":
        return [summary]
    return [*(table for card in measured.cards for table in card_tables(card)), summary]


def said(measured: Any) -> list[str]:
    """Cables that are not like the others, wrong sums, and what to know before a number is used."""
    found = [finding.words for finding in getattr(measured, "findings", ())]
    if isinstance(measured, Collectives) and not measured.good:
        found.append(f"WRONG: {sum(row.wrong for row in measured.sizes)} elements are not the exact sum")
    return found + list(measured.notes)


def measurement_text(measured: Any) -> str:
    """All of it for a terminal."""
    parts = [table.text(WIDTH) for table in tables_of(measured)]
    parts += ["\n".join(f"! {line}" for line in said(measured))] if said(measured) else []
    return "\n\n".join([*parts, *([f"kept in {measured.path}"] if measured.path else [])])


def size_text(size_bytes: float) -> str:
    """``8 B``, ``64 KiB``, ``4 MiB``."""
    return units.gib_text(size_bytes).replace(".00", "").replace(".0 ", " ")


def links_figure(cards: Sequence[LinkCard], reality: str) -> Any:
    """Half round trips, and bandwidth at the receiver, over message size: both ways of every cable, log axes."""
    import plotly.graph_objects as go

    figure, shown = go.Figure(), set()
    for number, card in enumerate(cards):
        colour = _COLOURS[number % len(_COLOURS)]
        for place, way in enumerate(card.directions):
            name = f"{way.source} to {way.target}"
            look = (colour if len(cards) > 1 else _COLOURS[place], place)
            for trace in (
                _latency_trace(way, *look),
                _bandwidth_trace(way.bandwidth, *look, ""),
                *_fit_traces(way, *look),
            ):
                if trace is not None:
                    trace.update(name=name, legendgroup=name, showlegend=name not in shown)
                    shown.add(name)
                    figure.add_trace(trace)
        both = _bandwidth_trace(card.both_ways, style.INK if len(cards) == 1 else colour, 1, "dash")
        if both is not None:
            name = f"{card.ends[0].split(':')[0]} and {card.ends[1].split(':')[0]}, both ways added"
            figure.add_trace(both.update(name=name, showlegend=len(cards) == 1))
    figure.update_layout(_layout(cards, reality))
    return figure


def _layout(cards: Sequence[LinkCard], reality: str) -> dict[str, Any]:
    what = cards[0].name if len(cards) == 1 else f"{len(cards)} cables"
    subtitle = (
        "points: block means with 95 % intervals; lines left: fitted pieces; a rate is timed where it arrives"
    )
    layout = style.layout(
        f"Latency and bandwidth over message size: {what} ({cards[0].carrier})",
        f"{subtitle}<br>{words.reality_text(reality)}",
        margin={"l": 84, "r": 24, "t": 150, "b": 66},
    )
    ways = [way for card in cards for way in card.directions]
    latencies = [row for way in ways for row in way.latency]
    rates = [row for way in ways for row in way.bandwidth] + [row for card in cards for row in card.both_ways]
    left, right = (_LEFT, _RIGHT) if latencies and rates else (_WHOLE, _WHOLE)
    found: dict[str, Any] = {"legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"}}
    if latencies:
        found["xaxis"] = _size_axis([row.bytes for row in latencies], left, "y")
        found["yaxis"] = _decades("half a round trip (µs)", [row.block_us.value for row in latencies], "x")
    if rates:
        gb_per_s = [row.block_bytes_per_s.value / GB for row in rates]
        found["xaxis2"] = _size_axis([row.bytes for row in rates], right, "y2")
        found["yaxis2"] = _decades("bandwidth (GB/s, 10⁹ bytes)", gb_per_s, "x2")
    return layout | found


def _size_axis(sizes: Sequence[int], domain: tuple[float, float], anchor: str) -> dict[str, Any]:
    ticks = [2**k for k in range(0, 31, 3) if min(sizes) <= 2**k <= max(sizes)] or [min(sizes)]
    named = [size_text(tick).replace(" ", "<br>") for tick in ticks]
    return style.axis(
        "message size", type="log", domain=domain, anchor=anchor, tickvals=ticks, ticktext=named
    )


def _decades(title: str, values: Sequence[float], anchor: str) -> dict[str, Any]:
    """A logarithmic axis with 1, 2, 5 in each decade, or 1 alone where there are many."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    return style.axis(
        title, type="log", anchor=anchor, tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks]
    )


def _latency_trace(way: Direction, colour: str, place: int) -> Any:
    values = [row.block_us for row in way.latency]
    return _points([row.bytes for row in way.latency], values, 1.0, colour, place) if values else None


def _bandwidth_trace(rows: Sequence[Any], colour: str, place: int, dash: str) -> Any:
    if not rows:
        return None
    values = [row.block_bytes_per_s for row in rows]
    trace = _points([row.bytes for row in rows], values, GB, colour, place)
    line = {"color": colour, "width": 1, "dash": dash or _DASHES[place]}
    return trace.update(xaxis="x2", yaxis="y2", mode="lines+markers", line=line)


def _points(sizes: Sequence[int], values: Sequence[Interval], scale: float, colour: str, place: int) -> Any:
    import plotly.graph_objects as go

    minus, plus = [(v.value - v.low) / scale for v in values], [(v.high - v.value) / scale for v in values]
    return go.Scatter(
        x=list(sizes), y=[v.value / scale for v in values], mode="markers",
        marker={"color": colour, "symbol": _SYMBOLS[place], "size": 7},
        error_y=style.error_bars(minus, plus, colour) | {"width": 3, "thickness": 1},
    )  # fmt: skip


def _fit_traces(way: Direction, colour: str, place: int) -> list[Any]:
    """One line a piece, on the sizes that it stands on."""
    import plotly.graph_objects as go

    found = []
    for piece in way.fit.pieces if way.fit else ():
        steps = 24
        sizes = [
            piece.from_bytes * (piece.to_bytes / piece.from_bytes) ** (i / steps) for i in range(steps + 1)
        ]
        line = {"color": colour, "width": 1.2, "dash": _DASHES[place]}
        times = [piece.time_us(size) for size in sizes]
        found.append(go.Scatter(x=sizes, y=times, mode="lines", line=line, hoverinfo="skip"))
    return found
