"""``scale``: the experiment from a cluster and plans to a sealed run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import log
from pathlib import Path
from typing import Any

import msgspec

from tbkit import __version__
from tbkit.cluster import Cluster
from tbkit.cluster.shard import ShardedModel, Weights, model_of, weights_of
from tbkit.errors import Interrupted, UsageError
from tbkit.plan import Placement, Plans
from tbkit.plan import plan as every_plan
from tbkit.record import Check, Gate, Record, RunFolder, Sample, new_run_id
from tbkit.record.provenance import versions
from tbkit.scale import estimate, gate, locate
from tbkit.scale.decode import Decode, decode_workload
from tbkit.scale.design import Design, chosen, order_of_loads
from tbkit.scale.loads import Load
from tbkit.show import Shown

Say = Callable[[str], None]
WORKLOADS = ("decode",)
DRIFT_LIMIT = 0.05  # of the sentinel, from the begin of a load to its end


class Run(Shown):
    """A finished run: its folder and its record."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record = path, record

    @property
    def id(self) -> str:
        """The run's id, the name of its folder."""
        return self.record.id

    @property
    def ok(self) -> bool:
        """Whether every plan passed the gate."""
        return self.record.state == "done"

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.record.workload}, {self.record.state}>"


def scale(
    cluster: Cluster,
    workload: str = "decode",
    plans: Sequence[Plans] | Plans | Placement | Sequence[str] | None = None,
    *,
    on: Sequence[int] | None = None,
    model: str | None = None,
    design: Design | None = None,
    root: Path | str | None = None,
    plant: str | None = None,
    weights: Weights | None = None,
    say: Say = lambda _: None,
    tick: Callable[[int, int], None] = lambda _done, _all: None,
) -> Run:
    """Measure a workload on 1, 2, ... nodes and keep every sample in a run folder.

    ``plans``: None or Plans run every kind that fits at each count of ``on``; a Placement or names of
    kinds choose. Before any rate the gate compares each plan with one node; a plan that fails
    ends the run as WRONG, without rates. ``plant`` plants a named fault, to see the gate work.
    Raises UsageError for what is not there, PlanError for what cannot be.
    """
    if workload not in WORKLOADS:
        raise UsageError("workload", f"one of {', '.join(WORKLOADS)}", workload)
    design = design or Design()
    if on is not None:
        design = msgspec.structs.replace(design, on=tuple(sorted(set(on))))
    design.check()
    if max(design.on) > cluster.size:
        raise UsageError(
            "--on",
            f"at most the {cluster.size} nodes of the cluster",
            str(max(design.on)),
            f"Connect with --local {max(design.on)}",
        )
    weights = weights or weights_of(model or model_of(plans))
    if plant is not None:
        from tbkit.rank.sharded.faults import parse  # loads mlx, which no other run needs here

        parse(plant, weights.facts.layers)
    placements = _placements(weights, plans, design)
    experiment = Experiment(cluster, weights, placements, design, plant, say, tick)
    return experiment.run(root)


def _placements(weights: Weights, plans: Any, design: Design) -> list[Placement]:
    facts = weights.facts
    if isinstance(plans, Placement):
        return chosen([every_plan(facts, 1)], None) + ([plans] if plans.nodes > 1 else [])
    kinds = None if plans is None or isinstance(plans, Plans) else [str(kind) for kind in plans]
    return chosen([every_plan(facts, n) for n in sorted({1, *design.on})], kinds)


class Experiment:
    """One run being made."""

    def __init__(
        self,
        cluster: Cluster,
        weights: Weights,
        placements: list[Placement],
        design: Design,
        plant: str | None,
        say: Say,
        tick: Callable[[int, int], None],
    ) -> None:
        self.cluster, self.weights, self.placements, self.design = cluster, weights, placements, design
        self.plant, self.say, self.tick = plant, say, tick
        self.work: Decode = decode_workload(weights)
        self.single = every_plan(weights.facts, 1)["one"]
        self.created = datetime.now(UTC).isoformat(timespec="seconds")
        self.samples: list[Sample] = []
        self.gates: list[Gate] = []
        self.counts: dict[estimate.Key, tuple[int, int]] = {}
        self.stability: dict[tuple[int, str], tuple[bool, float]] = {}
        self.drifts: estimate.Drifts = {}
        self.notes: list[str] = []

    def run(self, root: Path | str | None) -> Run:
        """Make the run; whatever stops it, the folder says so."""
        folder = RunFolder.create(root, self._record("running"))
        try:
            wrong = self._loads(folder)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            folder.log(f"stopped: {reason}")
            self.notes.append(f"stopped: {reason}")
            folder.finish(msgspec.structs.replace(self._record("failed"), id=folder.record.id))
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(
                    "run", "stopped by Ctrl-C", remedy="The cluster stays; call again"
                ) from None
            raise
        record = self._record("wrong" if wrong else "done")
        return Run(folder.path, folder.finish(msgspec.structs.replace(record, id=folder.record.id)))

    def _loads(self, folder: RunFolder) -> bool:
        """Run every load; true when one is WRONG, and then no further one runs."""
        self.say("one node first: the reference of the gate")
        ref = self._reference()
        folder.log(f"reference: spread {ref.spread:.3e} over {self.design.spread_orders} reduction orders")
        order = order_of_loads(self.placements, self.design)
        for number, placement in order:
            self.say(f"{placement.kind} on {placement.nodes}: {placement.split or 'whole'}")
            model = self._place(placement, self.plant if placement.nodes > 1 else None)
            load = Load(number, model, self.work, self.design)
            if not self._passes(ref, model, folder):
                return True
            self._measure(load, folder, number, len(order))
        return False

    def _reference(self) -> gate.Reference:
        """One node's answers, made once a cluster for the same weights, text and number of orders."""
        facts = msgspec.json.encode(self.weights.facts)
        key = (self.weights.source, facts, self.work, self.design.spread_orders)
        known: dict[object, gate.Reference] = self.cluster.references
        if key not in known:
            known[key] = gate.reference(self._place(self.single), self.work, self.design.spread_orders)
        return known[key]

    def _place(self, placement: Placement, fault: str | None = None) -> ShardedModel:
        return ShardedModel(self.cluster, self.weights, placement, backend=self.design.backend, fault=fault)

    def _passes(self, ref: gate.Reference, model: ShardedModel, folder: RunFolder) -> bool:
        checks = [gate.coverage(self.weights.facts, model.plan, model.reports)]
        if checks[0].ok:
            got = gate.logits_of(model, self.work)
            checks += gate.judge(ref, got)
            if not all(check.ok for check in checks):
                checks.append(Check("place", False, self._locate(ref, model, got)))
        ok = all(check.ok for check in checks)
        verdict = Gate(model.plan.nodes, model.plan.kind, "OK" if ok else "WRONG", tuple(checks))
        known = [g for g in self.gates if (g.nodes, g.plan) != (verdict.nodes, verdict.plan)]
        self.gates = [*known, verdict]
        folder.log(
            f"gate {verdict.plan} on {verdict.nodes}: {verdict.verdict}: "
            + "; ".join(c.words for c in checks)
        )
        return ok

    def _locate(self, ref: gate.Reference, model: ShardedModel, got: gate.Logits) -> str:
        tokens = locate.forced_until(self.work, gate.differences(ref, got))
        mine = locate.traces(model, self.work, tokens)
        single = self._place(self.single)
        whole = locate.traces(single, self.work, tokens)[0]
        noise = locate.traces(single, self.work, tokens, seed=1)[0]
        return locate.first_difference(model, mine, whole, noise)

    def _measure(self, load: Load, folder: RunFolder, number: int, loads: int) -> None:
        begun = self._sentinel(load.model)
        load.prepare()
        blocks = self.design.warmup_blocks + self.design.blocks
        done = number * blocks

        def tick() -> None:
            nonlocal done
            done += 1
            self.tick(done, loads * blocks)

        for block in load.blocks(tick):
            folder.journal(block)
            self.samples += block
        nodes, kind = load.plan.nodes, load.plan.kind
        stable, moved = self.stability.get((nodes, kind), (True, 0.0))
        self.stability[nodes, kind] = (stable and load.stable, max(moved, load.warmup_spread))
        for arm in load.arms:
            self.counts[nodes, kind, arm] = load.counts.get("F" if arm == "P" else arm, (0, 0))
        drift = self._sentinel(load.model) / begun - 1
        folder.log(f"load {number}, {kind} on {nodes}: sentinel drift {drift:+.1%}")
        self.drifts.setdefault((nodes, kind), []).append(log(1 + drift))
        if abs(drift) > DRIFT_LIMIT:
            words = f"its sentinel (fixed products and all-reduces) drifted by {drift:+.0%} from begin to end"
            self.notes.append(f"load {number}, {kind} on {nodes}: {words}")

    def _sentinel(self, model: ShardedModel) -> float:
        return max(float(answer["us"]) for answer in model.call("sentinel"))

    def _record(self, state: Any) -> Record:
        return Record(
            id=new_run_id("decode"),
            workload="decode",
            state=state,
            reality=self.cluster.reality,
            created=self.created,
            model=self.weights.facts.name,
            cluster={"nodes": self.cluster.nodes, "size": self.cluster.size, "cores": os.cpu_count()},
            factors=self._factors(),
            arms=self._arms(state),
            gates=tuple(self.gates),
            notes=tuple(self.notes),
            speedup=estimate.speedups(self.samples, self.drifts) if state == "done" else (),
        )

    def _arms(self, state: str) -> Any:
        return (
            estimate.arms(self.samples, self.counts, self.stability, self.drifts) if state == "done" else ()
        )

    def _factors(self) -> dict[str, Any]:
        design = {
            k: list(v) if isinstance(v, tuple) else v for k, v in msgspec.structs.asdict(self.design).items()
        }
        return design | {
            "workload_words": self.work.words,
            "threads_per_rank": 1,
            "waiting_policy": self.cluster.policy,
            "waiting_policy_resolved": self.cluster.policy_resolved,
            "weights": self.weights.source.partition(":")[0],
            "activations": "float32"
            if self.weights.source.startswith("gguf")
            else self.weights.source.partition(":")[2],
            "interval": "95 %, within one load" if self.design.loads == 1 else "95 %, between loads",
            "sentinel_log_drift": {
                f"{kind} on {n}": [round(d, 4) for d in all_] for (n, kind), all_ in self.drifts.items()
            },
            "layers": self.weights.facts.layers,
            "planted_fault": self.plant or "none",
            "tbkit": __version__,
            "versions": versions(),
        }
