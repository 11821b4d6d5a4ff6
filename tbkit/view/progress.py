"""A progress bar for a person who watches, and silence for everybody else.

Plain text by ``tqdm``: no ipywidgets, so nothing breaks where a front end has no widgets, and nothing
of it is left in a saved notebook.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

SILENT_S = 2.0


def watched(stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a person looks at ``stream`` (standard error): a terminal, or a notebook's front end.

    False under CI, with ``IPP_NONINTERACTIVE`` set, and where a notebook is executed with nobody
    there (nbconvert, nbclient, papermill): these, unlike a front end, cannot answer a prompt, and say so.
    """
    env = os.environ if environ is None else environ
    if env.get("CI") or env.get("IPP_NONINTERACTIVE"):
        return False
    kernel = _kernel()
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", False))
    shown = sys.stderr if stream is None else stream
    try:
        return shown.isatty()
    except (AttributeError, ValueError):
        return False


class Progress:
    """A context in which long work says how far it is; a bar shows after 2 s, if anybody watches.

    It is also the callback that work takes which must not know of views::

        with Progress("decode") as tell:
            tell(3, 40, "2 nodes, block 1")  # done, of all, what now
    """

    def __init__(self, what: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self.what, self.total, self.stream = what, total, stream
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if watched(self.stream):
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, desc=self.what, file=self.stream or sys.stderr, delay=SILENT_S,
                             leave=False, ncols=88, mininterval=0.2)  # fmt: skip
        return self

    def __call__(self, done: int, total: int | None = None, now: str = "") -> None:
        """``done`` of ``total`` units are done; ``now`` says what is being worked on."""
        if self._bar is None:
            return
        self._bar.total = self.total if total is None else total
        self._bar.set_postfix_str(now, refresh=False)
        self._bar.update(done - self._bar.n)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _kernel() -> Any:
    """The IPython kernel of this process, or None outside of one."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None)
