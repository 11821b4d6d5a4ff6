"""Time of a message over its size as straight pieces: t = α + bytes × slope, from relative residuals.

A piece stands on at least three sizes. One piece more is claimed only where an F test of lack of fit, against the
scatter between blocks, rejects what fewer can do; deviations below 5 % are nobody's evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf, isfinite

import msgspec
import numpy as np
import numpy.typing as npt

from tbkit.errors import UsageError
from tbkit.stats import Interval, mean_interval, reciprocal

LEAST_SIZES = 3  # of a piece: two make its line, the third can speak against it
MOST_PIECES = 5
TOLERANCE = 0.05  # relative; a model within it is good enough to predict with
REJECT_AT = 0.99

Vector = npt.NDArray[np.float64]


class Piece(msgspec.Struct, frozen=True):
    """One straight piece, with the smallest and largest size that it stands on. Intervals are over blocks."""

    from_bytes: int
    to_bytes: int
    alpha_us: Interval
    us_per_byte: Interval

    @property
    def beta_bytes_per_s(self) -> Interval | None:
        """Bytes a second of this piece; None where its slope is not told from 0."""
        return reciprocal(self.us_per_byte, 1e6) if self.us_per_byte.low > 0 else None

    def time_us(self, size_bytes: float) -> float:
        """What the piece says of a size."""
        return self.alpha_us.value + size_bytes * self.us_per_byte.value


class Fit(msgspec.Struct, frozen=True):
    """The pieces in order of size. ``residuals``: (fitted − measured) / measured, one a size measured.

    ``enough``: what is left is no more than scatter and 5 %; False where even the most pieces allowed miss it.
    """

    pieces: tuple[Piece, ...]
    residuals: tuple[float, ...]
    enough: bool

    @property
    def breakpoints_bytes(self) -> tuple[tuple[int, int], ...]:
        """Between which two measured sizes each change lies."""
        return tuple((left.to_bytes, right.from_bytes) for left, right in pairwise(self.pieces))

    def time_us(self, size_bytes: float) -> float:
        """The fitted time of a message; between two pieces the lower one holds."""
        return next((p for p in reversed(self.pieces) if size_bytes >= p.from_bytes), self.pieces[0]).time_us(
            size_bytes
        )


@dataclass(frozen=True)
class _Scatter:
    """Squared relative deviation of one size in one block, block means taken out, and its degrees of freedom."""

    mean_square: float
    freedom: int
    blocks: int


def fit(sizes: Sequence[int], blocks: Sequence[Sequence[float]]) -> Fit:
    """Fit times in µs, ``blocks[b][i]`` of message size ``sizes[i]`` (bytes, ascending) in block b.

    Raises UsageError for fewer than 3 sizes or 2 blocks, sizes that do not rise, times that are not above 0.
    """
    times = _checked(sizes, blocks)
    x, middle = np.asarray(sizes, dtype=float), np.exp(np.log(times).mean(axis=0))
    scatter = _scatter(times)
    cuts, enough = _fewest(x, middle, scatter)
    pieces = tuple(_piece(x[a:b], times[:, a:b]) for a, b in cuts)
    lines = [_line(x[a:b], middle[a:b]) for a, b in cuts]
    fitted = np.concatenate([p + s * x[a:b] for (p, s), (a, b) in zip(lines, cuts, strict=True)])
    return Fit(pieces, tuple(map(float, fitted / middle - 1)), enough)


def _checked(sizes: Sequence[int], blocks: Sequence[Sequence[float]]) -> Vector:
    if len(sizes) < LEAST_SIZES or any(b <= a for a, b in pairwise(sizes)):
        raise UsageError("fit", f"at least {LEAST_SIZES} message sizes, rising", f"{list(sizes)}")
    if len(blocks) < 2 or any(len(block) != len(sizes) for block in blocks):
        raise UsageError("fit", "at least 2 blocks with a time a size", f"{len(blocks)} blocks")
    times = np.asarray(blocks, dtype=float)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise UsageError("fit", "times above 0", f"{times.min():g}")
    return times


def _scatter(times: Vector) -> _Scatter:
    logs = np.log(times)
    left = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    blocks, count = times.shape
    freedom = (blocks - 1) * (count - 1)
    return _Scatter(float((left**2).sum()) / freedom, freedom, blocks)


def _fewest(x: Vector, t: Vector, scatter: _Scatter) -> tuple[list[tuple[int, int]], bool]:
    """Bounds (first, one past the last) of the fewest pieces that are enough, or of the most that may be."""
    count, most = len(x), min(MOST_PIECES, len(x) // LEAST_SIZES)
    best: list[tuple[int, int]] = [(0, count)]
    for pieces in range(1, most + 1):
        best, cost = _best(x, t, pieces)
        freedom = count - 3 * pieces + 1  # two numbers a piece, and the places of the breaks
        if not _rejected(cost, freedom, scatter):
            return best, True
    return best, False


def _rejected(cost: float, freedom: int, scatter: _Scatter) -> bool:
    """Whether a sum of squared relative residuals is more than scatter and tolerance explain."""
    allowed = scatter.mean_square / scatter.blocks + TOLERANCE**2
    return freedom > 0 and cost / freedom / allowed > _f_quantile(freedom, scatter.freedom)


@cache
def _f_quantile(over: int, under: int) -> float:
    from scipy.special import fdtri

    return float(fdtri(over, under, REJECT_AT))


def _best(x: Vector, t: Vector, pieces: int) -> tuple[list[tuple[int, int]], float]:
    """The bounds of the least sum of squared relative residuals in so many pieces, and that sum."""
    count = len(x)
    table: dict[tuple[int, int], tuple[float, int]] = {(0, 0): (0.0, 0)}  # (pieces, end): cost, last start
    for k in range(1, pieces + 1):
        for end in range(k * LEAST_SIZES, count + 1):
            options = [
                (table.get((k - 1, start), (inf, 0))[0] + _cost(x[start:end], t[start:end]), start)
                for start in range((k - 1) * LEAST_SIZES, end - LEAST_SIZES + 1)
            ]
            table[k, end] = min(options)
    bounds, end = [], count
    for k in range(pieces, 0, -1):
        start = table[k, end][1]
        bounds.append((start, end))
        end = start
    return bounds[::-1], table[pieces, count][0]


def _cost(x: Vector, t: Vector) -> float:
    alpha, slope = _line(x, t)
    return float((((alpha + slope * x) / t - 1) ** 2).sum())


def _line(x: Vector, t: Vector) -> tuple[float, float]:
    """α (µs) and slope (µs a byte, never below 0) of the least squared relative residuals."""
    weights = 1 / t**2
    mean_x, mean_t = np.average(x, weights=weights), np.average(t, weights=weights)
    slope = float((weights * (x - mean_x) * (t - mean_t)).sum() / (weights * (x - mean_x) ** 2).sum())
    slope = slope if isfinite(slope) and slope > 0 else 0.0
    return float(mean_t - slope * mean_x), slope


def _piece(x: Vector, times: Vector) -> Piece:
    alphas, slopes = zip(*(_line(x, block) for block in times), strict=True)
    return Piece(int(x[0]), int(x[-1]), mean_interval(alphas), mean_interval(slopes))
