"""Gives the rank processes of these tests one more verb: ``python``, code run inside the rank."""

from __future__ import annotations

from typing import Any

from tbkit.rank.body import Body


def _do_python(self: Body, code: str, values: dict[str, Any] | None = None) -> Any:
    """Run code with ``body`` and the values as names; gives what it leaves in ``result``."""
    if not hasattr(self, "names"):
        self.names = {"body": self}
    self.names.update(values or {}, result=None)
    exec(code, self.names)
    return self.names["result"]


Body.do_python = _do_python  # type: ignore[attr-defined]
