"""Where a wrong answer begins: one position run again, layer by layer, against one node."""

from __future__ import annotations

from typing import Any

import numpy as np

from tbkit.cluster.shard import ShardedModel
from tbkit.model.roles import FAMILIES
from tbkit.plan import Share
from tbkit.plan.spans import span
from tbkit.scale.decode import Decode
from tbkit.scale.gate import Logits

NOISE_FACTOR = 10.0
Trace = dict[str, "np.ndarray[Any, Any]"]


def forced_until(work: Decode, worst: Logits) -> list[int]:
    """The forced tokens up to the worst decode position."""
    decode = worst[len(work.prompt) :]
    return list(work.forced[: int(decode.argmax()) + 1])


def traces(model: ShardedModel, work: Decode, tokens: list[int], seed: int | None = None) -> list[Trace]:
    """Every rank's outputs by ``layer.role`` at the last of the tokens, and its cache rows."""
    answers = model.call("trace", prompt=list(work.prompt), tokens=tokens, seed=seed)
    return [model.arrays(rank, answer["path"]) for rank, answer in enumerate(answers)]


def first_difference(model: ShardedModel, mine: list[Trace], whole: Trace, noise: Trace) -> str:
    """The first layer and role whose output is not the reference's, in words."""
    facts = model.weights.facts
    family = FAMILIES[facts.family]
    names = [role.name for role in family.roles]
    order = [*names[:3], "cache_k", "cache_v", *names[3:]]
    for layer in range(facts.layers):
        for name in order:
            for share, trace in zip(model.plan.shares, mine, strict=True):
                if share.layers[0] <= layer < share.layers[1]:
                    key = f"{layer}.{name}"
                    fault = _fault(
                        trace.get(key), _part(whole[key], share, name, model), _tolerance(whole, noise, key)
                    )
                    if fault:
                        return f"first difference: layer {layer}, {name}, rank {share.rank}: {fault}"
    return "no role of any layer differs: the fault lies in the embedding, the last norm or the head"


def _tolerance(whole: Trace, noise: Trace, key: str) -> float:
    spread = float(np.abs(whole[key] - noise[key]).max())
    scale = float(np.abs(whole[key]).max())
    return NOISE_FACTOR * spread + 1e-5 * scale


def _part(whole: np.ndarray[Any, Any], share: Share, name: str, model: ShardedModel) -> np.ndarray[Any, Any]:
    """What of the reference's array a rank should have."""
    facts = model.weights.facts
    if name.startswith("cache"):
        return whole[list(share.kv_heads)]
    role = FAMILIES[facts.family].role(name)
    if role.cut == "columns":
        return whole
    start, stop = span(share, role.unit, facts.head_dim)
    return whole[..., start:stop]


def _fault(got: np.ndarray[Any, Any] | None, wanted: np.ndarray[Any, Any], tolerance: float) -> str:
    if got is None:
        return "it did not run"
    if got.shape != wanted.shape:
        return f"shape {got.shape} where {wanted.shape} belongs"
    difference = np.abs(got - wanted)
    if bool(np.nanmax(difference) <= tolerance) and np.isfinite(got).all():
        return ""
    words = f"off by {difference.max():.2e}, rounding gives at most {tolerance:.1e}"
    if difference.ndim == 3 and got.shape[0] < 64 and difference.shape[1] > 1:
        head, row, _ = np.unravel_index(int(np.nan_to_num(difference, nan=np.inf).argmax()), difference.shape)
        words += f" (row {int(row)} of KV head {int(head)} held there)"
    return words
