"""``tb.plan``: every placement of a model on so many nodes, as a sequence that shows itself as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, overload

import msgspec

from tbkit.errors import PlanError, UsageError
from tbkit.model.catalog import facts_of, nearest
from tbkit.model.facts import ModelFacts
from tbkit.plan import ownership
from tbkit.plan.kinds import placements
from tbkit.plan.placement import KINDS, Placement, weights_bytes
from tbkit.show import Shown

_PREFERRED = ("tensor", "tensor-uneven", "pipeline", "one")
_WIDTH = 100


class Sized(Protocol):
    """Anything that has a number of nodes, such as a Cluster."""

    @property
    def size(self) -> int:
        """Number of nodes."""


class Plans(Shown, Sequence[Placement]):
    """All kinds of placement of one model on one number of nodes, those that cannot be with their reasons.

    ``plans.best`` and ``plans["pipeline"]`` give placements that fit; ``plans[0]`` and iteration give all
    kinds.
    """

    def __init__(self, facts: ModelFacts, nodes: int, all_kinds: tuple[Placement, ...]) -> None:
        self.facts, self.nodes, self._all = facts, nodes, all_kinds

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, key: int | str) -> Placement: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Placement, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Placement | tuple[Placement, ...]:
        """By position, or by kind: :class:`UsageError` where unknown, :class:`PlanError` where refused."""
        return self._of_kind(key) if isinstance(key, str) else self._all[key]

    def _of_kind(self, kind: str) -> Placement:
        found = next((p for p in self._all if p.kind == kind), None)
        if found is None:
            remedy = f"Did you mean {nearest(kind, KINDS)!r}? Known: {', '.join(KINDS)}"
            raise UsageError(f"plan {kind!r}", "must be a kind of placement", remedy=remedy)
        if not found.fits:
            raise self._refused(found.kind, found.reasons)
        return found

    def _refused(self, kind: str, reasons: tuple[str, ...]) -> PlanError:
        fitting = ", ".join(p.kind for p in self._all if p.fits)
        remedy = f"Remedy: take {fitting}" if fitting else "Remedy: use fewer nodes, or another model"
        where = f"{self.nodes} node{'s' * (self.nodes > 1)}"
        return PlanError(
            f"{self.facts.name}, {kind} on {where}", "; ".join(reasons), remedy=remedy, reasons=reasons
        )

    @property
    def best(self) -> Placement:
        """The first that fits of tensor, tensor-uneven, pipeline, one; :class:`PlanError` where none does."""
        fitting = {p.kind: p for p in self._all if p.fits}
        for kind in _PREFERRED:
            if kind in fitting:
                return fitting[kind]
        raise self._refused("any kind", tuple(f"{p.kind}: {r}" for p in self._all for r in p.reasons))

    def rows(self) -> list[dict[str, Any]]:
        """One dict a kind: kind, nodes, fits, split, reason, weights_bytes (of the largest rank)."""
        return [
            {
                "kind": p.kind,
                "nodes": p.nodes,
                "fits": p.fits,
                "split": p.split,
                "reason": "; ".join(p.reasons),
                "weights_bytes": max((weights_bytes(self.facts, s) or 0 for s in p.shares), default=0)
                or None,
            }
            for p in self._all
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data with the keys ``facts, plans, best`` of the verb ``plan``; what is not known is None.

        A rank's ``weights_bytes`` are those of its share as stored in the file.
        """
        fitting = any(p.fits for p in self._all)
        return {
            "facts": msgspec.to_builtins(self.facts),
            "plans": [self._plan_json(p) for p in self._all],
            "best": self.best.kind if fitting else None,
        }

    def _plan_json(self, placement: Placement) -> dict[str, Any]:
        unknown = {"kv_bytes": None, "total_bytes": None, "limit_bytes": None}
        return {
            "kind": placement.kind,
            "nodes": placement.nodes,
            "split": placement.split,
            "fits": placement.fits,
            "reasons": list(placement.reasons),
            "ranks": [{"weights_bytes": weights_bytes(self.facts, s), **unknown} for s in placement.shares],
            "predicted": None,
            "engines": None,
        }

    def __repr__(self) -> str:
        lines = [
            f"{self.facts.name} on {self.nodes} node{'s' * (self.nodes > 1)}",
            f"{'kind':<15}{'fits':<6}split or reason",
        ]
        for row in self.rows():
            fits = {True: "yes", False: "no", None: "?"}[row["fits"]]
            text = textwrap.wrap(row["split"] or row["reason"], _WIDTH - 21) or [""]
            lines += [f"{row['kind']:<15}{fits:<6}{text[0]}", *(" " * 21 + more for more in text[1:])]
        return "\n".join(lines)


def plan(model: str | Path | ModelFacts, nodes: int | Sized) -> Plans:
    """Every placement of a model on ``nodes`` equal nodes, each checked for ownership, or with its reason.

    ``model`` is a name of the catalogue, a ``config.json``, a folder holding one, a ``.gguf`` file, or facts;
    ``nodes`` a whole number from 1, or an object with ``size`` (a Cluster). Nothing is fetched or loaded.

    On one node only ``one`` fits. On several, ``one`` is refused, since a placement on N nodes is one that
    uses all of them: plan for 1 node to have the base case. ``tensor-uneven`` is offered where ``tensor``
    is not possible. Raises :class:`UsageError` for a name or number that is not one, :class:`InputError`
    for a file that is not what it should be.
    """
    count = getattr(nodes, "size", nodes)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(
            "nodes", "must be a whole number from 1, or a cluster", repr(count), "Remedy: give nodes=2"
        )
    facts = facts_of(model)
    plans = Plans(facts, count, placements(facts, count))
    for placement in plans:
        if placement.fits:
            ownership.check(facts, placement)
    return plans
