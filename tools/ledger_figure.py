"""Draw the README's figure, ``docs/ledger.png``, from the run that is kept in ``docs/runs``.

``.venv/bin/python tools/ledger_figure.py [RUN_FOLDER]``: a folder given is first copied to take the kept run's place.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(given: list[str]) -> int:
    """Keep the run, if one is given, and write the picture of its first ledger."""
    from tbkit.explain import explain
    from tbkit.show import picture_png
    from tbkit.view.figures import ledger_figure

    if given:
        shutil.rmtree(DOCS / "runs", ignore_errors=True)
        shutil.copytree(given[0], DOCS / "runs" / Path(given[0]).name)
    kept = next((DOCS / "runs").iterdir())
    ledger = explain(str(kept)).ledgers[0]
    png = picture_png(ledger_figure(ledger, ledger.reality), scale=1.5)
    if png is None:
        print("no picture: a Chrome or Chromium draws it", file=sys.stderr)
        return 1
    (DOCS / "ledger.png").write_bytes(png)
    print(f"{DOCS / 'ledger.png'}: {kept.name}, {len(png)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
