"""Colours, fonts and the layout that every figure shares.

The colours of plans and terms are Okabe and Ito's, which the colour-blind tell apart.
"""

from __future__ import annotations

from typing import Any

INK, MUTED, RULE, PAPER = "#1b1f24", "#57606a", "#d8dee4", "#ffffff"
KIND_COLOURS = {
    "one": "#1b1f24",
    "tensor": "#009e73",
    "tensor-uneven": "#0072b2",
    "pipeline": "#d55e00",
    "tensor-pipeline": "#cc79a7",
}
KIND_SYMBOLS = {
    "one": "diamond",
    "tensor": "triangle-up",
    "tensor-uneven": "circle",
    "pipeline": "square",
    "tensor-pipeline": "triangle-down",
}
IDEAL, MEASURED, LOSS, GAIN, UNTOLD, RESIDUAL = (
    "#9aa7b4",
    "#6b7785",
    "#d55e00",
    "#0072b2",
    "#b9c0c7",
    "#cc79a7",
)
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
WIDTH, HEIGHT = 1000, 560


def layout(title: str, subtitle: str, **more: Any) -> dict[str, Any]:
    """The shared layout of a figure of :data:`WIDTH` x :data:`HEIGHT`, white, with title and subtitle."""
    text = f"<b>{title}</b><br><span style='font-size:13px;color:{MUTED}'>{subtitle}</span>"
    shared = {
        "template": "none",
        "width": WIDTH,
        "height": HEIGHT,
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {
            "text": text,
            "x": 0.016,
            "xanchor": "left",
            "y": 0.965,
            "yanchor": "top",
            "font": {"size": 17},
        },
        "hoverlabel": {"font": {"family": FONT}},
    }
    return shared | more


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title (unit included), light rules, no zero line of its own."""
    shared = {
        "title": {"text": title, "standoff": 12, "font": {"size": 13}},
        "gridcolor": RULE,
        "linecolor": MUTED,
        "tickcolor": MUTED,
        "ticks": "outside",
        "ticklen": 5,
        "zeroline": False,
    }
    return shared | more


def note(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A text without an arrow."""
    return {"text": text, "x": x, "y": y, "showarrow": False, "font": {"size": 12, "color": INK}} | more


def error_bars(minus: list[float], plus: list[float], colour: str) -> dict[str, Any]:
    """Whiskers of uneven length, in the unit of the axis."""
    sides = {"type": "data", "symmetric": False, "array": plus, "arrayminus": minus}
    return sides | {"color": colour, "thickness": 1.6}
