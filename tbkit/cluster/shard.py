"""A model cut over the nodes of a cluster: load it by a plan, call its ranks, make text."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tbkit.cluster.cluster import Cluster
from tbkit.errors import PlanError, UsageError
from tbkit.model.catalog import facts_of, fetch, find, names
from tbkit.model.facts import ModelFacts
from tbkit.plan import Placement, Plans, check
from tbkit.plan import plan as every_plan
from tbkit.show import Shown

LOAD_DEADLINE_S = 120.0
CALL_DEADLINE_S = 300.0
BACKENDS = ("fabric", "ring")


class Weights(msgspec.Struct, frozen=True):
    """What a rank loads: facts, and ``gguf:PATH`` or ``random:TYPE`` (a seeded model for tests)."""

    facts: ModelFacts
    source: str

    @property
    def path(self) -> str:
        """The model file; UsageError where there is none."""
        kind, _, where = self.source.partition(":")
        if kind != "gguf":
            raise UsageError(
                self.facts.name, "has a tokenizer", f"weights {self.source}", "Use a model of the catalogue"
            )
        return where


def weights_of(model: str, on_progress: Callable[[int, int], None] | None = None) -> Weights:
    """Fetch a model of the catalogue, if it is not here yet, and say what ranks load."""
    entry = find(model)
    return Weights(facts_of(model), f"gguf:{fetch(entry.name, on_progress=on_progress)}")


class ShardedModel(Shown):
    """A loaded model: rank i of the plan lives on node ``nodes[i]``."""

    def __init__(
        self,
        cluster: Cluster,
        weights: Weights,
        plan: Placement,
        nodes: Sequence[int] | None = None,
        *,
        backend: str = "fabric",
        fault: str | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise UsageError("backend", f"one of {', '.join(BACKENDS)}", backend)
        self.cluster, self.weights, self.plan, self.backend = cluster, weights, plan, backend
        self.nodes = list(range(plan.nodes)) if nodes is None else list(nodes)
        if len(self.nodes) != plan.nodes or max(self.nodes) >= cluster.size:
            got = f"{cluster.size} nodes"
            raise PlanError(
                f"plan {plan.kind}", f"needs {plan.nodes} nodes", got, f"Connect with --local {plan.nodes}"
            )
        check(weights.facts, plan)
        self.fault = fault
        self.reports: list[dict[str, Any]] = []
        self._place()

    def _place(self) -> None:
        """Replace what has died, form the group of the plan's nodes, and load each rank's shard."""
        self.cluster.heal()
        self._form_group()
        self.reports = self._load(self.fault)
        self.cluster.loaded = self

    def __repr__(self) -> str:
        names = "+".join(self.cluster.nodes[i] for i in self.nodes)
        return f"<ShardedModel: {self.weights.facts.name}, {self.plan.kind} on {names} over {self.backend}>"

    def _form_group(self) -> None:
        if self.backend == "ring" and self.plan.nodes > 1:
            hosts = json.dumps([[f"127.0.0.1:{port}"] for port in _free_ports(self.plan.nodes)])
            path = self.cluster.keep("ring.json", hosts)
            env = [{"MLX_HOSTFILE": path, "MLX_RANK": str(i)} for i in range(self.plan.nodes)]
            self.cluster.restart(self.nodes, env)
            self.cluster.heal()
        if self.plan.nodes > 1:
            self.cluster.join(self.nodes)

    def _load(self, fault: str | None) -> list[dict[str, Any]]:
        shared = {
            "facts": msgspec.to_builtins(self.weights.facts),
            "plan": msgspec.to_builtins(self.plan),
            "weights": self.weights.source,
            "backend": self.backend,
            "fault": fault,
        }
        args = [shared | {"rank": i} for i in range(self.plan.nodes)]
        return self.cluster.ask(self.nodes, "load", args, deadline_s=LOAD_DEADLINE_S)

    def call(
        self,
        verb: str,
        *,
        ranks: Sequence[int] | None = None,
        on_text: Callable[[str], None] | None = None,
        **args: Any,
    ) -> list[Any]:
        """A call of the shards, on all ranks at once or on these; one answer a rank.

        They are loaded again where another model took their place, or something failed since the last call.
        """
        if self.cluster.loaded is not self:
            self._place()
        nodes = [self.nodes[i] for i in ranks] if ranks is not None else self.nodes
        packed = {"call": verb, **args}
        return self.cluster.ask(nodes, "model", packed, deadline_s=CALL_DEADLINE_S, on_text=on_text)

    def arrays(self, rank: int, path: str) -> dict[str, Any]:
        """The named arrays of a file that a rank wrote; the file is deleted."""
        import io

        import numpy as np

        data = self.cluster.fetch(self.nodes[rank], path)
        self.cluster.ask([self.nodes[rank]], "discard", {"path": path})
        with np.load(io.BytesIO(data)) as file:
            return dict(file)

    def generate(self, text: str, count: int = 32, *, chat: bool = False, stream: bool = True) -> Generated:
        """Greedy text after ``text``, at most ``count`` tokens; printed as it comes where ``stream``.

        ``chat`` puts the text as a user's question into the model's own chat form.
        """
        from pathlib import Path

        from tbkit.model.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_gguf(Path(self.weights.path))
        prompt = tokenizer.chat(text) if chat else tokenizer.encode(text)
        if not prompt:
            raise UsageError("generate", "takes some text to go on from", "none")
        show = (lambda piece: print(piece, end="", flush=True)) if stream else (lambda _: None)
        answer = self.call(
            "generate",
            on_text=show,
            prompt=prompt,
            count=count,
            stop=[tokenizer.eos],
            weights=self.weights.path,
        )[0]
        if stream:
            print()
        return Generated(text, tokenizer.decode(answer["tokens"]), len(answer["tokens"]))


class Generated(msgspec.Struct, frozen=True):
    """Text that a model made: ``prompt``, ``text``, number of ``tokens``."""

    prompt: str
    text: str
    tokens: int

    def __str__(self) -> str:
        return self.prompt + self.text


def shard(
    cluster: Cluster,
    plan: Plans | Placement | str | None = None,
    model: str | None = None,
    *,
    backend: str = "fabric",
) -> ShardedModel:
    """Load a model over a cluster by a plan: a Placement, Plans (its best), a kind by name, or None for the best.

    Raises PlanError where the plan cannot be, UsageError for an unknown model or kind.
    """
    weights = weights_of(model or model_of(plan))
    if plan is None or isinstance(plan, str):
        plans = every_plan(weights.facts, cluster.size)
        plan = plans[plan] if plan else plans
    return ShardedModel(cluster, weights, plan.best if isinstance(plan, Plans) else plan, backend=backend)


def model_of(plan: Any) -> str:
    """The model that a plan places; the catalogue's first where it names none."""
    if isinstance(plan, Plans):
        return plan.facts.name
    return (plan.model if isinstance(plan, Placement) else "") or names()[0]


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
