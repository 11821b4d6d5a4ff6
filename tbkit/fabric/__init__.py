"""Collectives between the ranks of a group over numpy and mlx arrays, reads of each other's memory, and the means to
watch a group from outside.

::

    group = join("tbkit-7f3a", rank=0, size=2, deadline_s=30.0)
    y = group.all_reduce(x)            # a new array of x's kind
    group.all_reduce(x, out=x)         # in place
    window = group.expose(x)           # on all ranks; then, on any:
    window.read(1, offset=0, length=4096)
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
from tbkit.fabric.window import ReadTimes, Window, WindowCarrier

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
    "ReadTimes",
    "Relay",
    "Shape",
    "Window",
    "WindowCarrier",
    "align",
    "discard",
    "form",
    "join",
    "observe",
    "over_folder",
    "over_stdio",
]
