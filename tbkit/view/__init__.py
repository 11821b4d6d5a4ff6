"""Figures, tables, text, the one-file report, and what each type looks like in a notebook.

A new look for a type is a function in ``drawers.py`` and a row of ``_DRAWERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tbkit.show import Drawing

Drawer = Callable[[Any], Drawing]

_DRAWERS = {
    "Record": "draw_record",
    "Run": "draw_record",
    "Explanation": "draw_explanation",
    "Ledger": "draw_ledger",
    "Gate": "draw_gate",
    "Plans": "draw_plans",
    "Cluster": "draw_cluster",
    "Measurement": "draw_measurement",
    "LinkCard": "draw_link_card",
    "Finding": "draw_finding",
}


def drawer_for(kind: type) -> Drawer | None:
    """The drawer of a type or of the nearest class that it derives from, by name; None without one."""
    found = next((_DRAWERS[cls.__name__] for cls in kind.__mro__ if cls.__name__ in _DRAWERS), None)
    if found is None:
        return None
    drawer: Drawer = getattr(import_module("tbkit.view.drawers"), found)
    return drawer
