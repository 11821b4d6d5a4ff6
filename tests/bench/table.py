"""Printing and keeping what the benchmarks found, and the rows whose bar is a plain figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tbkit.stats import Interval, paired_ratio

OUT = Path("build/bench")
COLUMNS = ["what", "unit", "ours", "peer", "peer_value", "ratio", "interval", "bar", "holds"]
NOISE_FLOOR = 1.03
NOTE = (
    "Ratios: paired logs, 95 % t intervals; a bar of 1.0 against a peer is judged at 1.03, the noise floor.\n"
    "An absolute row is measured against its limit, which stands as peer_value; its bar is ratio <= 1.0."
)


def absolute(what: str, unit: str, measured: Interval, limit: float, command: str) -> dict[str, Any]:
    """A row without a peer: ``measured`` and its interval against ``limit``, both in ``unit``."""
    low, high = measured.low / limit, measured.high / limit
    return {
        "what": what,
        "unit": unit,
        "ours": measured.value,
        "peer": "absolute",
        "peer_version": "",
        "command": command,
        "peer_value": limit,
        "ratio": measured.value / limit,
        "low": low,
        "high": high,
        "bar": "<= 1.0",
        "holds": high <= 1.0,
    }


def against(
    what: str,
    unit: str,
    ours: Sequence[float],
    peer: tuple[str, str],
    theirs: Sequence[float],
    bar: str,
    command: str,
) -> dict[str, Any]:
    """A row against a peer (name, version): paired launches, the ratio as ``bar`` asks for it.

    ``<= x`` bounds ours/peer from above; ``>= x`` bounds peer/ours ("times faster") from below.
    """
    ratio = paired_ratio(ours, theirs) if bar.startswith("<=") else paired_ratio(theirs, ours)
    row = {
        "what": what,
        "unit": unit,
        "ours": median(ours),
        "peer": peer[0],
        "peer_version": peer[1],
        "command": command,
        "peer_value": median(theirs),
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "bar": bar,
    }
    limit = judged_at(row)
    return row | {"holds": ratio.high <= limit if bar.startswith("<=") else ratio.low >= limit}


def judged_at(row: dict[str, Any]) -> float:
    """The figure that decides the row's bar: 1.03 for ``<= 1.0`` against a peer, the noise floor."""
    relation, limit = row["bar"].split()
    return (
        NOISE_FLOOR if row["peer"] != "absolute" and (relation, float(limit)) == ("<=", 1.0) else float(limit)
    )


def verdict(row: dict[str, Any]) -> str:
    """``yes``, ``no``, or ``undecided`` where the interval straddles the bar."""
    if row["holds"]:
        return "yes"
    return "undecided" if row["low"] <= judged_at(row) <= row["high"] else "no"


def cells(row: dict[str, Any]) -> list[str]:
    """One row as it is printed."""
    interval = f"{row['low']:.3g} to {row['high']:.3g}"
    peer = f"{row['peer']} {row['peer_version']}".strip()
    numbers = [f"{row['ours']:.4g}", peer, f"{row['peer_value']:.4g}", f"{row['ratio']:.3g}"]
    return [row["what"], row["unit"], *numbers, interval, row["bar"], verdict(row)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """All rows under their heads, columns as wide as they need."""
    lines = [COLUMNS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    body = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*body, "", NOTE])


def keep(name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Write ``build/bench/NAME.json``, whole or not at all."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(list(rows), indent=1) + "\n")
    return part.replace(path)
