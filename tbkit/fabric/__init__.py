"""Collectives between the ranks of a group over numpy and mlx arrays, and the means to watch one from
outside.

::

    group = join("tbkit-7f3a", rank=0, size=2, deadline_s=30.0)
    y = group.all_reduce(x)            # a new array of x's kind
    group.all_reduce(x, out=x)         # in place
    group.barrier()
    group.close()

On one node ``join`` suffices; over several, ``form`` takes a :class:`Cabling` and a way to exchange cards.
"""

from __future__ import annotations

from tbkit.fabric.cabling import Cable, Cabling, End, Relay
from tbkit.fabric.clock import Clock, align
from tbkit.fabric.group import Count, Group, Policy, RankFacts, join
from tbkit.fabric.mesh import Exchange, Mesh, form
from tbkit.fabric.notes import over_folder, over_stdio
from tbkit.fabric.observer import Observer, discard, observe
from tbkit.fabric.shape import LinkShape, Shape

__all__ = [
    "Cable",
    "Cabling",
    "Clock",
    "Count",
    "End",
    "Exchange",
    "Group",
    "LinkShape",
    "Mesh",
    "Observer",
    "Policy",
    "RankFacts",
    "Relay",
    "Shape",
    "align",
    "discard",
    "form",
    "join",
    "observe",
    "over_folder",
    "over_stdio",
]
