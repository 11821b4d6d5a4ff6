"""Experiments: loads, blocks, arms, and the gate before any rate."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tbkit.scale.design import QUICK, SMALL, Design
from tbkit.scale.run import Run, scale

__all__ = ["QUICK", "SMALL", "Design", "Run", "scale"]


class _Room(ModuleType):
    """The module, callable as :func:`tbkit.scale.run.scale`."""

    def __call__(self, *args: Any, **options: Any) -> Run:
        return scale(*args, **options)


_Room.__call__.__doc__ = scale.__doc__
sys.modules[__name__].__class__ = _Room
