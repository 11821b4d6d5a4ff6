"""Intervals: known answers, coverage by simulation, and what they refuse. All seeds are fixed."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from scipy import stats as reference

from tbkit import stats
from tbkit.errors import UsageError
from tbkit.stats import Interval

VALUES = [101.2, 99.1, 104.7, 98.6, 102.9]
OTHERS = [88.0, 91.5, 86.2, 90.1, 92.7, 89.3]


def covered(intervals: list[Interval], truth: float) -> float:
    return sum(i.low <= truth <= i.high for i in intervals) / len(intervals)


def test_mean_interval_is_students():
    """Value and bounds are those of scipy's t interval."""
    found = stats.mean_interval(VALUES)
    low, high = reference.t.interval(0.95, 4, np.mean(VALUES), reference.sem(VALUES))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.value == pytest.approx(np.mean(VALUES)) and found.n == 5


def test_log_interval_of_few_is_t_on_logs():
    """Up to 50 values: the exponential of the t interval of the logs."""
    logs = np.log(VALUES)
    bounds = reference.t.interval(0.95, 4, logs.mean(), reference.sem(logs))
    found = stats.log_interval(VALUES)
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(bounds)))
    assert found.value == pytest.approx(reference.gmean(VALUES))


def test_ratio_is_welch_on_logs():
    """The interval of the ratio is that of scipy's Welch test of the logs."""
    welch = reference.ttest_ind(np.log(VALUES), np.log(OTHERS), equal_var=False).confidence_interval(0.95)
    found = stats.ratio(VALUES, OTHERS)
    assert (found.low, found.high) == pytest.approx((np.exp(welch.low), np.exp(welch.high)))


def test_paired_forms_use_the_pairs():
    """A disturbance common to both sides of a block cancels."""
    drift = [0.0, 30.0, -12.0, 55.0, 8.0]
    a = [x + d + 5 for x, d in zip(VALUES, drift, strict=True)]
    b = [x + d for x, d in zip(VALUES, drift, strict=True)]
    found = stats.paired_difference(a, b)
    assert found.value == pytest.approx(5) and found.high - found.low < 1e-9
    scaled = stats.paired_ratio([1.1 * x for x in b], b)
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((1.1, 1.1, 1.1))


def test_combine_sum_is_welch_satterthwaite():
    """A difference of two means has scipy's Welch interval; a constant moves it and adds no width."""
    welch = reference.ttest_ind(VALUES, OTHERS, equal_var=False).confidence_interval(0.95)
    parts = [(1.0, stats.mean_interval(VALUES)), (-1.0, stats.mean_interval(OTHERS))]
    found = stats.combine_sum([*parts, (2.0, Interval(10, 10, 10, 1))])
    assert (found.low - 20, found.high - 20) == pytest.approx((welch.low, welch.high))


def test_reciprocal_swaps_the_bounds():
    """100 ms a step, between 80 and 125 ms, is 10 tokens/s between 8 and 12.5."""
    found = stats.reciprocal(Interval(100e3, 80e3, 125e3, 5), 1e6)
    assert (found.value, found.low, found.high) == pytest.approx((10, 8, 12.5))


@pytest.mark.parametrize(("n", "trials"), [(5, 4000), (20, 4000), (60, 1500)])
def test_log_interval_covers(n, trials):
    """Skewed step times: between 93 and 97 % of the intervals hold the true geometric mean."""
    random = np.random.default_rng(n)
    samples = random.lognormal(log(100), 0.15, (trials, n))
    assert 0.93 <= covered([stats.log_interval(list(row)) for row in samples], 100.0) <= 0.97


@pytest.mark.parametrize("n", [5, 20, 60])
def test_differences_and_ratios_cover(n):
    """Paired differences, independent ratios and sums of unlike precision keep their 95 %."""
    random = np.random.default_rng(100 + n)
    trials = 2000
    a, b = random.normal(100, 4, (trials, n)), random.normal(90, 2, (trials, n))
    block = random.normal(0, 25, (trials, n))
    pairs = zip(a + block, b + block, strict=True)
    assert 0.93 <= covered([stats.paired_difference(list(x), list(y)) for x, y in pairs], 10) <= 0.97
    e, f = random.lognormal(log(120), 0.1, (trials, n)), random.lognormal(log(100), 0.02, (trials, n))
    both = list(zip(e, f, strict=True))
    assert 0.93 <= covered([stats.ratio(list(x), list(y)) for x, y in both], 1.2) <= 0.97


def test_a_percentile_bootstrap_would_not_cover():
    """The reason for t and studentising: at n = 20 the percentile bootstrap holds the truth too rarely."""
    random = np.random.default_rng(3)
    hits = 0
    for row in random.lognormal(0, 0.5, (800, 20)):
        means = row[random.integers(0, 20, (600, 20))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        hits += low <= np.exp(0.125) <= high
    assert hits / 800 < 0.94


def test_many_values_give_the_same_interval_twice():
    """The bootstrap is seeded, and near t where t holds."""
    values = list(np.random.default_rng(1).lognormal(log(50), 0.05, 400))
    first, second = stats.log_interval(values), stats.log_interval(values)
    assert first == second
    logs = np.log(values)
    bounds = np.exp(reference.t.interval(0.95, 399, logs.mean(), reference.sem(logs)))
    assert (first.low, first.high) == pytest.approx(tuple(bounds), rel=1e-3)


def test_constant_values_have_no_width():
    """Values without scatter give an interval without width, however many they are."""
    for n in (2, 5, 80):
        found = stats.log_interval([7.0] * n)
        assert (found.low, found.value, found.high) == pytest.approx((7.0, 7.0, 7.0))


def test_split_max_is_unbiased():
    """Four equal ranks: the plain maximum of medians is too high, the split one is not."""
    random = np.random.default_rng(11)
    blocks = random.normal(100, 5, (3000, 4, 6))
    plain = np.median(blocks, axis=2).max(axis=1).mean()
    split = np.mean([stats.split_max(block.tolist()) for block in blocks])
    assert plain > 101.5
    assert abs(split - 100) < 4 * 5 / sqrt(3 * 3000)


def test_split_max_finds_the_slow_rank():
    """Odd steps (1st, 3rd, ...) choose, even steps measure."""
    steps = [[10, 99, 10, 99], [20, 21, 20, 23], [15, 70, 15, 70]]
    assert stats.slowest_rank(steps) == 1
    assert stats.split_max(steps) == 22


def test_blocks_needed_is_the_first_that_suffices():
    """One block fewer than the answer would give too wide an interval."""
    differences = [3.0, -2.0, 4.0, 1.0, -1.5]
    deviation = np.std(differences, ddof=1)
    n = stats.blocks_needed(differences, 0.8)
    assert n == stats.blocks_needed(stats.mean_interval(differences), 0.8)
    half = [reference.t.ppf(0.975, k - 1) * deviation / sqrt(k) for k in (n - 1, n)]
    assert half[0] > 0.8 >= half[1]
    assert stats.blocks_needed(differences, 1e6) == 2


def test_agreement_of_warm_up_blocks():
    """Three medians within 2 % agree; two never do; only the last three count."""
    assert stats.agree([100.0, 101.0, 99.5]) and not stats.agree([100.0, 103.0, 100.0])
    assert not stats.agree([100.0, 100.0])
    assert stats.agree([500.0, 100.0, 101.0, 100.5])
    assert stats.spread([100.0, 101.0, 99.0]) == pytest.approx(101 / 99 - 1)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: stats.mean_interval([1.0]), "at least 2"),
        (lambda: stats.mean_interval([1.0, float("nan")]), "finite"),
        (lambda: stats.log_interval([1.0, 0.0]), "above 0"),
        (lambda: stats.paired_difference([1.0, 2.0], [1.0]), "2 and 1"),
        (lambda: stats.paired_ratio([1.0, 2.0], [1.0, -2.0]), "above 0"),
        (lambda: stats.combine_sum([]), "at least one"),
        (lambda: stats.combine_sum([(1.0, Interval(1, 0, 2, 1))]), "at least 2"),
        (lambda: stats.reciprocal(Interval(1, -1, 3, 5)), "above 0"),
        (lambda: stats.split_max([[1.0, 2.0], [1.0]]), "same number of steps"),
        (lambda: stats.split_max([]), "no ranks"),
        (lambda: stats.blocks_needed(VALUES, 0.0), "above 0"),
    ],
)
def test_what_cannot_have_an_interval_is_refused(call, rule):
    """Too few, not finite, not positive, not paired: one line that says the rule."""
    with pytest.raises(UsageError, match=rule):
        call()


def test_widen_combines_half_widths_in_quadrature_and_keeps_the_value():
    """A drift of nothing changes nothing; one as large as the half-width makes it √2 times as wide, in logs."""
    narrow = Interval(10.0, 8.0, 12.5, 5)
    same, wider = stats.widen(narrow, 0.0), stats.widen(narrow, log(1.25))
    assert (same.low, same.high) == pytest.approx((8.0, 12.5))
    assert log(wider.high / wider.value) == pytest.approx(sqrt(2) * log(1.25))
    assert log(wider.value / wider.low) == pytest.approx(sqrt(2) * log(1.25))
