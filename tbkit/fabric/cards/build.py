"""From raw samples to the rows of a card. A block is the unit of every interval; nothing is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from tbkit.fabric.cards.fits import LEAST_SIZES, Fit, fit
from tbkit.fabric.cards.schema import Bandwidth, Collective, Cut, Direction, Latency
from tbkit.stats import log_interval, mean_interval

Samples = npt.NDArray[np.float64]
Block = Mapping[str, Samples]  # size in bytes, as text, to what one rank measured in a block


def percentile(ordered: Samples, share: float) -> float:
    """The sample of nearest rank: ``share`` of all samples are not above it. ``ordered`` rises."""
    return float(ordered[max(0, ceil(share * len(ordered) - 1e-9) - 1)])


def latency_row(size: int, blocks: Sequence[Samples]) -> Latency:
    """All blocks' half round trips, in µs, of one size."""
    every = np.sort(np.concatenate(blocks))
    return Latency(
        bytes=size,
        iterations=len(every),
        t_min_us=float(every[0]),
        t_max_us=float(every[-1]),
        t_typical_us=float(np.median(every)),
        t_avg_us=float(every.mean()),
        t_stdev_us=float(every.std(ddof=1)),
        p90_us=percentile(every, 0.9),
        p99_us=percentile(every, 0.99),
        p99_9_us=percentile(every, 0.999),
        block_us=log_interval([float(np.median(block)) for block in blocks]),
    )


def bandwidth_row(size: int, blocks: Sequence[Samples]) -> Bandwidth:
    """All blocks' windows of one size: rows of (messages, µs) as the receiver timed them."""
    every = np.concatenate(blocks)
    averages = [_rate(size, block[:, 0].sum(), block[:, 1].sum()) for block in blocks]
    return Bandwidth(
        bytes=size,
        iterations=int(every[:, 0].sum()),
        peak_bytes_per_s=float((size * every[:, 0] / every[:, 1]).max() * 1e6),
        average_bytes_per_s=_rate(size, every[:, 0].sum(), every[:, 1].sum()),
        block_bytes_per_s=log_interval(averages),
    )


def both_row(size: int, here: Sequence[Samples], there: Sequence[Samples]) -> Bandwidth:
    """Both ways at once: what arrived at the one end and at the other, added block by block."""
    ways = [bandwidth_row(size, end) for end in (here, there)]
    sums = [
        sum(_rate(size, block[:, 0].sum(), block[:, 1].sum()) for block in pair)
        for pair in zip(here, there, strict=True)
    ]
    return Bandwidth(
        bytes=size,
        iterations=sum(way.iterations for way in ways),
        peak_bytes_per_s=sum(way.peak_bytes_per_s for way in ways),
        average_bytes_per_s=sum(way.average_bytes_per_s for way in ways),
        block_bytes_per_s=log_interval(sums),
    )


def _rate(size: int, messages: float, us: float) -> float:
    return float(size * messages / us * 1e6)


def direction(
    source: str, target: str, latencies: Sequence[Block] = (), streams: Sequence[Block] = ()
) -> Direction:
    """One way of a card, from what the source timed of round trips and the target of streams, a dict a block."""
    return Direction(
        source=source,
        target=target,
        latency=tuple(latency_row(size, blocks) for size, blocks in by_size(latencies)),
        fit=_fit(latencies),
        bandwidth=tuple(bandwidth_row(size, blocks) for size, blocks in by_size(streams)),
    )


def by_size(blocks: Sequence[Block]) -> list[tuple[int, list[Samples]]]:
    """The blocks of each size, sizes rising."""
    sizes = sorted({int(size) for block in blocks for size in block})
    return [(size, [block[str(size)] for block in blocks]) for size in sizes]


def _fit(latencies: Sequence[Block]) -> Fit | None:
    found = by_size(latencies)
    if len(found) < LEAST_SIZES:
        return None
    medians = [[float(np.median(block)) for block in blocks] for _, blocks in found]
    return fit([size for size, _ in found], [list(block) for block in zip(*medians, strict=True)])


def collective_row(size: int, ranks: Sequence[Sequence[Samples]]) -> Collective:
    """An all-reduce of one size: ``ranks[r][b]`` holds rank r's times of block b, then its count of wrong elements."""
    blocks = list(zip(*ranks, strict=True))
    slowest = [max(float(np.median(samples[:-1])) for samples in block) for block in blocks]
    return Collective(
        bytes=size,
        count=size // 4,
        type="float",
        redop="sum",
        iterations=sum(len(block[0]) - 1 for block in blocks),
        time_us=log_interval(slowest),
        wrong=int(sum(samples[-1] for block in blocks for samples in block)),
    )


def cut_row(node: str, width: int, pieces: int, blocks: Sequence[Samples]) -> Cut:
    """One node's chains of a width: each block of shape (repeats, 2), whole and cut."""
    medians = [np.median(block, axis=0) for block in blocks]
    cost = [float(np.median(block[:, 1] - block[:, 0])) / (pieces - 1) for block in blocks]
    return Cut(
        node=node,
        width=width,
        pieces=pieces,
        whole_us=log_interval([float(whole) for whole, _ in medians]),
        cut_us=log_interval([float(cut) for _, cut in medians]),
        cut_cost_us=mean_interval(cost),
    )
