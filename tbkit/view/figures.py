"""The figures of a run, as ``plotly.graph_objects.Figure``: the speed-up, and the ledger's waterfall.

Both hold the record's numbers and none of their own. plotly loads when a figure is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tbkit import units
from tbkit.errors import RunError
from tbkit.record.schema import Record, SpeedUp
from tbkit.view import style, words
from tbkit.view.waterfall import ledger_figure

__all__ = ["ledger_figure", "speedup_figure"]

_LABEL_GAP = 0.048  # of the y axis: one line of text
_DODGE = 0.05  # of a node: keeps error bars of two plans at one count apart


def speedup_figure(record: Record) -> Any:
    """Speed-up against nodes with 95 % intervals, and the ideal line y = x as the upper bound.

    Points are not joined: nothing was measured between them. Raises ``RunError`` for a WRONG run.
    """
    import plotly.graph_objects as go

    if words.is_wrong(record):
        raise RunError(
            f"run {record.id}", "has no speed-up to draw", "a WRONG run", words.wrong_sentence(record)
        )
    found = sorted(words.speedups(record), key=lambda s: (s.nodes, s.plan))
    most = max([s.nodes for s in found] + [2])
    top = (
        min(max([most, *(s.high for s in found)]), 2 * most) * 1.1
    )  # one wide interval flattens nothing else
    figure = go.Figure([_ideal_line(most), _base_point(), *_plan_traces(found)])
    title = f"Speed-up over one node: {record.model}, {record.workload}"
    subtitle = f"{words.base_text(record)}; bars are 95 % intervals<br>{words.reality_text(record.reality)}"
    counts = sorted({1, *(s.nodes for s in found)})
    figure.update_layout(
        style.layout(title, subtitle, margin={"l": 78, "r": 48, "t": 116, "b": 66}),
        xaxis=style.axis("nodes", range=[0.6, most * 1.34], tickvals=counts, showgrid=False),
        yaxis=style.axis("speed-up over one node (×)", range=[0, top]),
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "itemsizing": "constant"},
        annotations=_value_labels(found, most, top),
    )
    return figure


def _ideal_line(most: int) -> Any:
    import plotly.graph_objects as go

    line = {"color": style.MUTED, "width": 1.5, "dash": "dash"}
    return go.Scatter(
        x=[1, most], y=[1, most], mode="lines", line=line, name="ideal (y = x)", hoverinfo="skip"
    )


def _base_point() -> Any:
    import plotly.graph_objects as go

    marker = {"color": style.KIND_COLOURS["one"], "symbol": style.KIND_SYMBOLS["one"], "size": 9}
    return go.Scatter(x=[1], y=[1], mode="markers", marker=marker, name="1 node (base)", hoverinfo="name")


def _plan_traces(found: Sequence[SpeedUp]) -> list[Any]:
    import plotly.graph_objects as go

    plans = list(dict.fromkeys(s.plan for s in found))
    traces = []
    for plan in plans:
        mine, kind = [s for s in found if s.plan == plan], words.plan_kind(plan)
        colour = style.KIND_COLOURS.get(kind, style.INK)
        minus, plus = [s.value - s.low for s in mine], [s.high - s.value for s in mine]
        traces.append(go.Scatter(
            x=[_place(s, plans) for s in mine], y=[s.value for s in mine], mode="markers", name=plan,
            marker={"color": colour, "symbol": style.KIND_SYMBOLS.get(kind, "cross"), "size": 7},
            error_y=style.error_bars(minus, plus, colour) | {"thickness": 2, "width": 8},
            hovertext=[words.speedup_sentence(s) for s in mine], hoverinfo="text",
        ))  # fmt: skip
    return traces


def _place(speedup: SpeedUp, plans: Sequence[str]) -> float:
    return speedup.nodes + _DODGE * (plans.index(speedup.plan) - (len(plans) - 1) / 2)


def _value_labels(found: Sequence[SpeedUp], most: int, top: float) -> list[dict[str, Any]]:
    """Value and interval right of the points of each count, moved apart where they would overlap."""
    notes, right = [], _DODGE * len({s.plan for s in found}) / 2 + 0.012 * most
    for nodes in sorted({s.nodes for s in found}):
        mine = sorted((s for s in found if s.nodes == nodes), key=lambda s: s.value)
        heights = apart([s.value for s in mine], _LABEL_GAP * top)
        for s, y in zip(mine, heights, strict=True):
            font = {"size": 12, "color": style.KIND_COLOURS.get(words.plan_kind(s.plan), style.INK)}
            text = f"{s.plan} {units.speedup_text(s)}"
            place = {"xanchor": "left", "yanchor": "middle", "bgcolor": style.PAPER, "borderpad": 0}
            notes.append(style.note(text, nodes + right, y, font=font, **place))
    return notes


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """``heights`` (ascending) with at least ``gap`` between neighbours.

    Those that would touch form a pile about their own middle; the others stay where they are.
    """
    piles: list[list[float]] = []
    for height in heights:
        piles.append([height])
        while len(piles) > 1 and _ends(piles[-2], gap)[1] + gap > _ends(piles[-1], gap)[0]:
            top = piles.pop()
            piles[-1] += top
    return [_ends(pile, gap)[0] + i * gap for pile in piles for i in range(len(pile))]


def _ends(pile: Sequence[float], gap: float) -> tuple[float, float]:
    """Lowest and highest place of a pile's labels."""
    middle, half = sum(pile) / len(pile), (len(pile) - 1) * gap / 2
    return middle - half, middle + half
