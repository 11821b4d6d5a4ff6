"""All intervals of tbkit come from here: 95 %, two-sided, over independent units.

An *independent unit* is a block (inside one load) or a load; never a step, for steps of a block
share its disturbances. Up to 50 values Student's t is used, on logs for what is a time or a rate;
above that a studentised bootstrap. A percentile bootstrap is not used: at n = 20 it covers 91 to 93 %
(a test shows it); in small samples it is less accurate than t (Hesterberg 2015,
doi:10.1080/00031305.2015.1089789). scipy and numpy load when first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import exp, fsum, isfinite, log, sqrt
from statistics import fmean, median

import msgspec

from tbkit.errors import UsageError

LEVEL = 0.95
T_LIMIT = 50  # values; above it the studentised bootstrap
_RESAMPLES = 1999
_SEED = 20260911  # fixed, so that the same samples give the same interval
_CHUNK = 1 << 20  # resampled values held at once: 8 MiB
_MOST_BLOCKS = 1_000_000


class Interval(msgspec.Struct, frozen=True):
    """A value with its 95 % interval; ``n`` is the number of independent units behind it."""

    value: float
    low: float
    high: float
    n: int


@cache
def t_quantile(freedom: float, probability: float = (1 + LEVEL) / 2) -> float:
    """Quantile of Student's t for ``freedom`` degrees of freedom (need not be whole)."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def mean_interval(values: Sequence[float]) -> Interval:
    """Arithmetic mean with Student's t interval. ``values``: at least 2, finite, one per unit."""
    _check(values)
    mean, error = fmean(values), _standard_error(values)
    half = t_quantile(len(values) - 1) * error
    return Interval(mean, mean - half, mean + half, len(values))


def log_interval(values: Sequence[float]) -> Interval:
    """Geometric mean of times or rates (all above 0, at least 2), with the interval from their logs."""
    return _geometric(_logs(values))


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Mean of ``a[i] - b[i]``; the two were measured in the same block ``i``."""
    _check_pairs(a, b)
    return mean_interval([x - y for x, y in zip(a, b, strict=True)])


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Geometric mean of ``a[i] / b[i]``; the two were measured in the same block ``i``."""
    _check_pairs(a, b)
    return _geometric([x - y for x, y in zip(_logs(a), _logs(b), strict=True)])


def ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Ratio of the geometric means of independent samples ``a`` and ``b``: Welch's t on logs."""
    parts = [(1.0, mean_interval(_logs(a))), (-1.0, mean_interval(_logs(b)))]
    return _exp(combine_sum(parts))


def combine_sum(terms: Sequence[tuple[float, Interval]]) -> Interval:
    """``sum(c * x)`` of independent estimates ``x``, with Welch-Satterthwaite degrees of freedom.

    ``terms``: ``(c, Interval)`` each; an interval without width is an exact constant. An uneven
    interval counts with half its width. ``n`` of the answer is its degrees of freedom + 1, rounded,
    so that answers can be combined again.
    """
    if not terms:
        raise UsageError("combine_sum", "needs at least one term", "none")
    value = fsum(c * x.value for c, x in terms)
    parts = [(c * c * _variance_of(x), x.n - 1) for c, x in terms if x.high > x.low and c]
    total = fsum(variance for variance, _ in parts)
    if not total:
        return Interval(value, value, value, min(x.n for _, x in terms))
    freedom = total**2 / fsum(variance**2 / df for variance, df in parts)
    half = t_quantile(freedom) * sqrt(total)
    return Interval(value, value - half, value + half, max(2, round(freedom) + 1))


def reciprocal(interval: Interval, scale: float = 1.0) -> Interval:
    """``scale / x`` of a positive interval: a step time in µs is a rate with ``scale=1e6`` tokens."""
    if interval.low <= 0:
        raise UsageError("reciprocal", "needs an interval above 0", f"low = {interval.low:g}")
    return Interval(scale / interval.value, scale / interval.high, scale / interval.low, interval.n)


def widen(interval: Interval, log_drift: float) -> Interval:
    """A positive interval whose half-widths in logs are combined, in quadrature, with ``log_drift``."""
    if not log_drift:
        return interval
    up, down = (sqrt(log(x / y) ** 2 + log_drift**2) for x, y in _sides(interval))
    return Interval(interval.value, interval.value * exp(-down), interval.value * exp(up), interval.n)


def slowest_rank(values_by_rank: Sequence[Sequence[float]]) -> int:
    """The rank with the highest median over the odd steps (1st, 3rd, ...) of a block."""
    _check_ranks(values_by_rank)
    medians = [median(steps[0::2]) for steps in values_by_rank]
    return medians.index(max(medians))


def split_max(values_by_rank: Sequence[Sequence[float]]) -> float:
    """The slowest rank's median step time in a block, without the upward bias of a maximum.

    ``values_by_rank[rank]`` holds that rank's steps in order. Odd steps choose the rank, even steps
    measure it: a choice made on the same noise that it measures would report the noise as time.
    """
    return float(median(values_by_rank[slowest_rank(values_by_rank)][1::2]))


def blocks_needed(measured: Interval | Sequence[float], target_half_width: float) -> int:
    """Number of blocks whose t interval of the mean would have at most ``target_half_width``.

    ``measured`` is an interval of :func:`mean_interval` or the per-block differences themselves.
    """
    if not target_half_width > 0:
        raise UsageError("blocks_needed", "needs a half-width above 0", f"{target_half_width:g}")
    interval = measured if isinstance(measured, Interval) else mean_interval(measured)
    deviation = sqrt(_variance_of(interval) * interval.n) if interval.high > interval.low else 0.0

    def enough(n: int) -> bool:
        return t_quantile(n - 1) * deviation <= target_half_width * sqrt(n)

    return _first(enough, 2, _MOST_BLOCKS)


def spread(values: Sequence[float]) -> float:
    """``max / min - 1`` of the last three values (all above 0): how far warm-up blocks still move."""
    last = [exp(x) for x in _logs(values[-3:])]
    return max(last) / min(last) - 1


def agree(last_three: Sequence[float], tolerance: float = 0.02) -> bool:
    """Whether the last three block medians lie within ``tolerance``; False with fewer than three."""
    return len(last_three) >= 3 and spread(last_three) <= tolerance


def _geometric(logs: Sequence[float]) -> Interval:
    return _exp(mean_interval(logs) if len(logs) <= T_LIMIT else _bootstrap_interval(logs))


def _bootstrap_interval(values: Sequence[float]) -> Interval:
    """Studentised bootstrap of the mean: quantiles of (mean* - mean) / error* stand in for t."""
    import numpy as np

    data, random = np.asarray(values, dtype=float), np.random.default_rng(_SEED)
    mean, error, n = fmean(values), _standard_error(values), len(values)
    if not error:
        return Interval(mean, mean, mean, n)
    rows = max(1, _CHUNK // n)
    pivots = []
    for start in range(0, _RESAMPLES, rows):
        drawn = data[random.integers(0, n, (min(rows, _RESAMPLES - start), n))]
        errors = drawn.std(axis=1, ddof=1) / sqrt(n)
        pivots.append((drawn.mean(axis=1) - mean) / np.maximum(errors, np.finfo(float).tiny))
    low, high = np.quantile(np.concatenate(pivots), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, mean - float(high) * error, mean - float(low) * error, n)


def _standard_error(values: Sequence[float]) -> float:
    mean, n = fmean(values), len(values)
    return sqrt(fsum((x - mean) ** 2 for x in values) / (n - 1) / n)


def _variance_of(interval: Interval) -> float:
    """Squared standard error behind a t interval."""
    if interval.n < 2:
        raise UsageError("interval", "needs at least 2 units to have a width", f"n = {interval.n}")
    return float(((interval.high - interval.low) / 2 / t_quantile(interval.n - 1)) ** 2)


def _exp(interval: Interval) -> Interval:
    return Interval(exp(interval.value), exp(interval.low), exp(interval.high), interval.n)


def _first(enough: Callable[[int], bool], low: int, limit: int) -> int:
    """Smallest ``n`` in ``low..limit`` with ``enough(n)``, which stays true once true; else ``limit``."""
    if enough(low):
        return low
    high = low * 2
    while high < limit and not enough(high):
        low, high = high, high * 2
    high = min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _sides(interval: Interval) -> tuple[tuple[float, float], tuple[float, float]]:
    if interval.low <= 0:
        raise UsageError("interval in logs", "needs an interval above 0", f"low = {interval.low:g}")
    return (interval.high, interval.value), (interval.value, interval.low)


def _logs(values: Sequence[float]) -> list[float]:
    _check(values)
    if min(values) <= 0:
        raise UsageError("interval on logs", "needs values above 0", f"{min(values):g}")
    return [log(x) for x in values]


def _check(values: Sequence[float]) -> None:
    if len(values) < 2:
        rule = "needs at least 2 independent values"
        raise UsageError("interval", rule, str(len(values)), "Measure more blocks")
    if not all(map(isfinite, values)):
        raise UsageError("interval", "needs finite values", "NaN or infinity")


def _check_pairs(a: Sequence[float], b: Sequence[float]) -> None:
    if len(a) != len(b):
        raise UsageError("paired values", "need one value of each side per block", f"{len(a)} and {len(b)}")


def _check_ranks(values_by_rank: Sequence[Sequence[float]]) -> None:
    counts = {len(steps) for steps in values_by_rank}
    if len(counts) != 1 or min(counts) < 2:
        got = f"{sorted(counts)} steps" if counts else "no ranks"
        raise UsageError("split_max", "needs the same number of steps, at least 2, of every rank", got)
