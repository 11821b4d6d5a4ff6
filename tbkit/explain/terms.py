"""The terms of the ledger, by block, and the same terms from their second sources (design.md 8).

Every function gives one value a block, microseconds a step. ``p`` is the number of ranks.
"""

from __future__ import annotations

import random
from statistics import fmean, median

from tbkit.explain.blocks import Blocks

NAMES = (
    "replicated",
    "shape",
    "contention",
    "imbalance",
    "fence",
    "wait",
    "latency",
    "transfer",
    "instruments",
)
REPLICATED = ("norms", "sampling", "build")
REPLAYS = 200


def ideal_network_us(blocks: Blocks) -> list[float]:
    """T_id: C's segments replayed with free collectives.

    Tensor: at each one all wait for the slowest; pipeline: one stage after another.
    """
    if blocks.plan == "pipeline":
        return [sum(ranks) for ranks in blocks.medians("C")]
    times = []
    for key in blocks.keys:
        by_rank = blocks.segments("C", key)
        steps = zip(*by_rank, strict=True)
        times.append(median(sum(map(max, zip(*ranks, strict=True))) for ranks in steps))
    return times


def route_a(blocks: Blocks, single_us: float) -> dict[str, list[float]]:
    """The terms as paired differences of arms inside each block. ``single_us`` is T_1."""
    p = blocks.nodes
    alone, free = blocks.mean("A"), blocks.mean("N")
    slow_free, slow_cut = blocks.slowest("N"), blocks.slowest("C")
    ideal, one, full = ideal_network_us(blocks), blocks.together("L"), blocks.together("F")
    replicated = [(1 - 1 / p) * fmean(ranks) for ranks in blocks.pieces("alone", only=REPLICATED)]
    pairs = {
        "replicated": (replicated, [0.0] * len(alone)),
        "shape": (alone, [single_us / p + r for r in replicated]),
        "contention": (free, alone),
        "imbalance": (slow_free, free),
        "fence": (slow_cut, slow_free),
        "wait": (ideal, slow_cut),
        "latency": (one, ideal),
        "transfer": (full, one),
        "instruments": (blocks.together("P"), full),
    }
    return {name: [x - y for x, y in zip(a, b, strict=True)] for name, (a, b) in pairs.items()}


def second_sources(blocks: Blocks, base: Blocks, layers: int) -> dict[str, list[float]]:
    """The terms again from pieces and links; a pipeline has no second fence, wait, latency and transfer.

    ``base`` is the single node. Where a value comes from it, it is the mean over its blocks: its scatter enters through
    :func:`base_scatter`.
    """
    p = blocks.nodes
    alone, both = blocks.pieces("alone"), blocks.pieces("together")
    cut = blocks.pieces("alone", but=REPLICATED)
    base_cut = fmean(ranks[0] for ranks in base.pieces("alone", but=REPLICATED))
    base_replicated = fmean(ranks[0] for ranks in base.pieces("alone", only=REPLICATED))
    found = {
        "replicated": [(1 - 1 / p) * base_replicated for _ in alone],
        "shape": [fmean(ranks) - base_cut / p for ranks in cut],
        "contention": [fmean(b) - fmean(a) for a, b in zip(alone, both, strict=True)],
        "imbalance": [max(ranks) - fmean(ranks) for ranks in alone],
    }
    if blocks.plan == "pipeline":
        return found
    reduces, gathers = 2 * layers + 1, 1
    link = {
        name: [fmean(ranks) for ranks in blocks.single(f"link/{name}")]
        for name in ("crossing", "one", "one_gathered", "hidden", "logits")
    }
    found["fence"] = [(reduces + gathers) * us for us in link["crossing"]]
    found["wait"] = [_replayed_wait(blocks, key) for key in blocks.keys]
    found["latency"] = [
        reduces * a + gathers * b for a, b in zip(link["one"], link["one_gathered"], strict=True)
    ]
    found["transfer"] = [
        reduces * (h - a) + gathers * (g - b)
        for h, a, g, b in zip(link["hidden"], link["one"], link["logits"], link["one_gathered"], strict=True)
    ]
    return found


def base_scatter(base: Blocks, p: int) -> dict[str, list[float]]:
    """By block of the single node: what its pieces contribute to the second sources, with their sign."""
    cut = [ranks[0] for ranks in base.pieces("alone", but=REPLICATED)]
    replicated = [ranks[0] for ranks in base.pieces("alone", only=REPLICATED)]
    return {"replicated": [(1 - 1 / p) * r for r in replicated], "shape": [-c / p for c in cut]}


def _replayed_wait(blocks: Blocks, key: tuple[int, int]) -> float:
    """Expected wait when every half-layer of every rank is drawn from its own measured times."""
    draw = random.Random(f"{key}")
    halves = [row[0] for row in blocks.segments("together/segments", key)]
    waits = []
    for _ in range(REPLAYS):
        drawn = [[draw.choice(times[i % 2 :: 2]) for i in range(len(times))] for times in halves]
        waits.append(sum(map(max, zip(*drawn, strict=True))) - max(map(sum, drawn)))
    return fmean(waits)
