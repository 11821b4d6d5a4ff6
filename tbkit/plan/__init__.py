"""How a model is cut over nodes: every placement, who owns what, and the check of it.

``tb.plan(model, nodes)`` and ``tbkit.plan.Plans`` are both meant to work, whichever was imported first: the
import system binds the room itself to the name ``plan`` of the package, so the room can be called.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from tbkit.model.facts import ModelFacts
from tbkit.plan.ownership import check, problems
from tbkit.plan.placement import Placement, Share
from tbkit.plan.plans import Plans, Sized, plan

__all__ = ["Placement", "Plans", "Share", "check", "plan", "problems"]


class _Room(ModuleType):
    """The module, callable as :func:`tbkit.plan.plans.plan`."""

    def __call__(self, model: str | Path | ModelFacts, nodes: int | Sized) -> Plans:
        return plan(model, nodes)


_Room.__call__.__doc__ = plan.__doc__
sys.modules[__name__].__class__ = _Room
