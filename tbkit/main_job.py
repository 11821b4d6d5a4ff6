"""``quickstart``: the main job on this machine, from nothing to a report of where the time went."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from tbkit.cluster import connect
from tbkit.errors import InputError
from tbkit.explain import Explanation
from tbkit.explain.explanation import explain
from tbkit.record.store import whole_file
from tbkit.scale import QUICK, SMALL, Design, Run
from tbkit.scale.run import scale
from tbkit.view.progress import Progress
from tbkit.view.report import write_report
from tbkit.view.text import summary

DEFAULT_OUT = "build/quickstart"


def is_small() -> bool:
    """Whether ``TBKIT_SMALL=1`` asks for the small form: 1 and 2 nodes, one plan, 2 blocks."""
    return os.environ.get("TBKIT_SMALL", "") not in ("", "0")


def form() -> tuple[Design, list[str] | None]:
    """The design of the main job and the kinds it runs, by :func:`is_small`."""
    return (SMALL, ["tensor-uneven"]) if is_small() else (QUICK, None)


def quickstart(
    out: str | Path = DEFAULT_OUT, *, plant: str | None = None, say: Callable[[str], None] = print
) -> Run | Explanation:
    """Cut the catalogue's model over 1, 2 and 4 engines here, measure, explain, report.

    Leaves ``report.html``, ``summary.json`` and ``runs/`` in ``out``. Gives the explanation, or the run
    when the gate found it WRONG.
    """
    folder = Path(out)
    _make(folder)
    design, kinds = form()
    with connect(local=max(design.on)) as cluster, Progress("quickstart") as tell:
        say(f"{cluster.size} engines on this machine are up")
        run = scale(
            cluster, "decode", kinds, design=design, root=folder / "runs", plant=plant, say=say, tick=tell
        )
    answer = explain(run) if run.ok else run
    record = answer.record
    write_report(record, folder / "report.html")
    with whole_file(folder / "summary.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(summary(record))) + b"\n")
    return answer


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            str(folder), "can be made a folder", error.strerror or str(error), "Choose another --out"
        ) from None
