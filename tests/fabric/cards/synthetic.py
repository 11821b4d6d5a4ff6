"""Cards of cables whose figures are known, because they were made up. Nothing here was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tbkit.fabric.cards import LinkCard, build

SIZES = tuple(2**k for k in range(3, 23))
STREAM_SIZES = tuple(4**k for k in range(3, 12))
TB5 = {"alpha_us": 9.0, "bytes_per_s": 6.5e9}
TB4 = {"alpha_us": 9.6, "bytes_per_s": 3.0e9}
LATE = {"alpha_us": 31.0, "bytes_per_s": 6.4e9}


def latencies(
    rng: np.random.Generator, alpha_us: float, bytes_per_s: float, blocks: int = 5, noise: float = 0.02
) -> list[dict[str, Any]]:
    """Blocks of half round trips, 200 a size, with a tail."""
    found = []
    for _ in range(blocks):
        drift = np.exp(noise * rng.standard_normal())
        found.append(
            {
                str(size): (alpha_us + size / bytes_per_s * 1e6)
                * drift
                * (1 + noise * rng.exponential(1, 200))
                for size in SIZES
            }
        )
    return found


def streams(
    rng: np.random.Generator, bytes_per_s: float, blocks: int = 5, noise: float = 0.02
) -> list[dict[str, Any]]:
    """Blocks of 6 windows of 63 messages a size."""
    found = []
    for _ in range(blocks):
        block = {}
        for size in STREAM_SIZES:
            us = 63 * (0.4 + size / bytes_per_s * 1e6) * np.exp(noise * rng.standard_normal(6))
            block[str(size)] = np.column_stack([np.full(6, 63.0), us])
        found.append(block)
    return found


def card(
    a: str, b: str, kind: dict[str, float] = TB5, back: dict[str, float] | None = None, *, seed: int = 0,
    noise: float = 0.02, **more: Any,
) -> LinkCard:  # fmt: skip
    """A cable between two nodes of one kind; ``back``: another kind in the other direction."""
    rng = np.random.default_rng([seed, *a.encode(), *b.encode()])
    ways = [
        build.direction(
            source, target, latencies(rng, **way, noise=noise), streams(rng, way["bytes_per_s"], noise=noise)
        )
        for source, target, way in ((a, b, kind), (b, a, back or kind))
    ]
    both = [streams(rng, kind["bytes_per_s"] * 0.9, noise=noise) for _ in range(2)]
    rows = [dict(build.by_size(blocks)) for blocks in both]
    shared = {
        "id": "20261201-120000-cards-0abc",
        "created": "2026-12-01T12:00:00+00:00",
        "reality": "published",
    }
    return LinkCard(
        **shared | {"carrier": "verbs"} | more,
        ends=(f"{a}:rdma_en2", f"{b}:rdma_en2"),
        there=ways[0],
        back=ways[1],
        both_ways=tuple(build.both_row(size, there, rows[1][size]) for size, there in rows[0].items()),
    )


def mesh(
    odd: dict[tuple[str, str], dict[str, float]],
    nodes: Sequence[str] = ("mac1", "mac2", "mac3", "mac4"),
    **more: Any,
) -> list[LinkCard]:
    """A full mesh of Thunderbolt 5 cables but for the odd ones."""
    return [card(a, b, odd.get((a, b), TB5), **more) for a, b in combinations(nodes, 2)]
