"""The ledger and what follows from it. Never imports scale or cluster: a stranger's record is judged like ours."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tbkit.explain.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]


class _Room(ModuleType):
    """The module, callable as :func:`tbkit.explain.explanation.explain`."""

    def __call__(self, *args: Any, **options: Any) -> Explanation:
        return explain(*args, **options)


_Room.__call__.__doc__ = explain.__doc__
sys.modules[__name__].__class__ = _Room
