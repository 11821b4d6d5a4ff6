"""The sharded model as a rank's body: load, prompt, gate passes, traces, arms, pieces, text."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np

from tbkit.errors import InputError
from tbkit.fabric import Group
from tbkit.model.facts import ModelFacts
from tbkit.model.roles import FAMILIES
from tbkit.plan import Placement
from tbkit.rank.sharded.arms import Bench
from tbkit.rank.sharded.collectives import Alone, Collectives, FabricLinks, RingLinks
from tbkit.rank.sharded.faults import Fault
from tbkit.rank.sharded.interventions import links_of
from tbkit.rank.sharded.pieces import Pieces, crossing_us, messages_us
from tbkit.rank.sharded.probe import cache_rows, reorder, tapped
from tbkit.rank.sharded.shard import Shard
from tbkit.rank.sharded.weights import GgufWeights, RandomWeights, Source

PIECE_REPEATS = 3


class Sharded:
    """A loaded shard. Arguments are plain data: facts and plan as their structs' builtins."""

    def __init__(
        self,
        facts: dict[str, Any],
        plan: dict[str, Any],
        rank: int,
        weights: str,
        group: Group | None,
        stream: Callable[[str], None],
        backend: str = "fabric",
        fault: str | None = None,
        seed: int = 0,
    ) -> None:
        begun = perf_counter()
        self.facts = msgspec.convert(facts, ModelFacts)
        self.plan = msgspec.convert(plan, Placement)
        self.weights, self.seed, self.stream = weights, seed, stream
        self.group = group if self.plan.nodes > 1 else None
        self.links = self._links(backend)
        mx.random.seed(seed)
        self.shard = Shard(self.facts, self.plan, rank, self._source(), self.links)
        mx.clear_cache()
        self.fault = Fault(fault, self.shard) if fault else None
        self.prompt: list[int] = []
        self.bench: Bench | None = None
        self.pieces = Pieces(self.shard, 0)
        self.load_s = perf_counter() - begun

    def _links(self, backend: str) -> Collectives:
        if self.plan.nodes == 1:
            return Alone()
        if backend == "ring":
            return RingLinks(mx.distributed.init(strict=True, backend="ring"))
        if self.group is None:
            raise InputError("fabric", "has a group of the plan's nodes before a shard is loaded", "none")
        return FabricLinks(self.group)

    def _source(self) -> Source:
        kind, _, where = self.weights.partition(":")
        if kind == "random":
            dtype = {"bfloat16": mx.bfloat16, "float32": mx.float32}[where]
            return RandomWeights(self.facts, FAMILIES[self.facts.family], self.seed, dtype)
        return GgufWeights(where)

    def report(self) -> dict[str, Any]:
        """What was loaded: what the rank really owns, bytes held, seconds."""
        return {
            "owned": self.shard.owned(),
            "active_bytes": mx.get_active_memory(),
            "load_s": self.load_s,
            "pid": os.getpid(),
        }

    def _prefill(self, prompt: list[int]) -> mx.array:
        self.shard.forget()
        out = self.shard.forward(prompt)
        mx.eval(
            out, [cache.keys for cache in self.shard.caches], [cache.values for cache in self.shard.caches]
        )
        if self.fault:
            self.fault.after_prefill()
        self.prompt = prompt
        return out

    def logits(self, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
        """Logits of every prompt position and every forced token, float32 (positions, vocabulary), as a file.

        Only the ranks that have logits write one; the others give None.
        """
        outs = [self._prefill(prompt)]
        for token in tokens:
            outs.append(self.shard.step(token)[1])
            mx.eval(outs[-1])
        if not self.shard.last or (self.shard.tensor and self.shard.rank):
            return {"path": None}
        return {"path": _keep({"logits": np.array(mx.concatenate(outs, axis=1)[0].astype(mx.float32))})}

    def spread(self, prompt: list[int], tokens: list[int], seed: int) -> dict[str, Any]:
        """As :meth:`logits`, with every reduction in another order; a whole model only. Ends with the plain order."""
        reorder(self.shard, seed)
        try:
            return self.logits(prompt, tokens)
        finally:
            self.shard = Shard(self.facts, self.plan, self.shard.rank, self._source(), self.links)
            self.pieces = Pieces(self.shard, 0)

    def trace(self, prompt: list[int], tokens: list[int], seed: int | None = None) -> dict[str, Any]:
        """Every role's output at the last forced token and the cache rows, as a file of named float32 arrays."""
        if seed is not None:
            reorder(self.shard, seed)
        self._prefill(prompt)
        for token in tokens[:-1]:
            self.shard.step(token)
        with tapped(self.shard) as seen:
            _, out = self.shard.step(tokens[-1])
            mx.eval(out, list(seen.values()))
        arrays = {k: np.array(v.astype(mx.float32)) for k, v in (seen | cache_rows(self.shard)).items()}
        if seed is not None:
            self.shard = Shard(self.facts, self.plan, self.shard.rank, self._source(), self.links)
        return {"path": _keep(arrays)}

    def prepare(self, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
        """Prompt in the caches, tokens fixed, hidden states recorded: ready for arms."""
        self._prefill(prompt)
        self.bench = Bench(self.shard, self.links, self.group, len(prompt), tokens)
        self.bench.run("P")
        return self.bench.record() if self.group is not None else {}

    def arm(self, name: str) -> dict[str, Any]:
        """The steps of one arm (see :meth:`tbkit.rank.sharded.arms.Bench.run`)."""
        if self.bench is None:
            raise InputError("arm", "is run after prepare", "no prompt")
        return self.bench.run(name)

    def time_pieces(self, together: bool) -> dict[str, Any]:
        """Each piece, the median of three timings, and each half-layer once; alone or with all ranks at once."""
        if together:
            self.links.barrier()
        context = len(self.prompt)
        if self.group is not None:
            self.shard.wire.set(links_of("N", self.group))
        try:
            each = [self.pieces.all(context) for _ in range(PIECE_REPEATS)]
            segments = self.pieces.segments(context) if together else []
        finally:
            self.shard.wire.set(self.links)
        times = {name: median(one[name] for one in each) for name in each[0]}
        return {"pieces": times, "segments": segments}

    def time_links(self) -> dict[str, Any]:
        """The graph cut and the messages of a step, all ranks at once: microseconds each."""
        if self.group is None:
            return {}
        hidden = self.facts.hidden
        rows = max(s.vocab[1] - s.vocab[0] for s in self.plan.shares)
        sizes = {"one": (1, 0), "one_gathered": (0, 1), "hidden": (hidden, 0), "logits": (0, rows)}
        self.group.barrier()
        cut = crossing_us(hidden)
        return {"crossing": cut, **messages_us(self.group, sizes)}

    def sentinel(self) -> dict[str, float]:
        """Fixed work on all ranks at once, the median of three: 32 products of 256 × 256, then 32 all-reduces."""
        return {"us": median(self._sentinel_us() for _ in range(3))}

    def _sentinel_us(self) -> float:
        x, hidden = mx.ones((256, 256)), mx.ones(self.facts.hidden)
        mx.eval(x, hidden)
        self.links.barrier()
        begun = perf_counter()
        for _ in range(32):
            x = x @ x * (1 / 256)
        mx.eval(x)
        for _ in range(32):
            hidden = self.links.all_reduce(hidden * 0.5)
        mx.eval(hidden)
        return (perf_counter() - begun) * 1e6

    def generate(self, prompt: list[int], count: int, stop: list[int], weights: str) -> dict[str, Any]:
        """Greedy text from a prompt; streamed as it comes from rank 0."""
        from tbkit.model.tokenizer import Tokenizer

        text = Tokenizer.from_gguf(Path(weights)).decode_stream() if self.shard.rank == 0 else None
        token = self._first_token(prompt)
        made: list[int] = []
        while token not in stop and len(made) < count:
            made.append(token)
            if text is not None:
                self.stream(text.push(token))
            token, _ = self.shard.step(token)
        if text is not None:
            self.stream(text.finish())
        return {"tokens": made}

    def _first_token(self, prompt: list[int]) -> int:
        """The prompt but its last token goes in as one piece, the last one as a step."""
        self.shard.forget()
        if prompt[:-1]:
            mx.eval(self.shard.forward(prompt[:-1]))
        return self.shard.step(prompt[-1])[0]


def _keep(arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    handle, path = tempfile.mkstemp(prefix="tbkit-", suffix=".npz")
    with os.fdopen(handle, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return path
