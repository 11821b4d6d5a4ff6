"""Fits find what was put in: pieces, breaks, α and slope; and claim no more than the data show."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tbkit.errors import UsageError
from tbkit.fabric.cards import fit

SIZES = [2**k for k in range(3, 23)]
X = np.array(SIZES, dtype=float)
LINE = 9.0 + X / 6.5e3
JUMP = np.where(X <= 16384, 9.0 + X / 6.5e3, 25.0 + X / 3.0e3)
THREE = np.where(X <= 512, 4.0, np.where(X <= 65536, 9.0 + X / 2e3, 60.0 + X / 6e3))


def blocks(truth: np.ndarray, noise: float, seed: int, count: int = 5) -> np.ndarray:
    """Blocks with a drift each, and scatter on every size."""
    rng = np.random.default_rng(seed)
    scatter = noise * rng.standard_normal((count, len(truth)))
    return truth * np.exp(scatter + noise * rng.standard_normal((count, 1)))


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.1])
def test_one_line_is_one_piece(noise):
    """Of 100 lines with scatter, at least 98 are told to be one piece."""
    found = Counter(len(fit(SIZES, blocks(LINE, noise, seed)).pieces) for seed in range(100))
    assert found[1] >= 98


@pytest.mark.parametrize(
    ("truth", "breaks"), [(JUMP, ((16384, 32768),)), (THREE, ((512, 1024), (65536, 131072)))]
)
def test_a_jump_is_found_where_it_is(truth, breaks):
    """The breaks lie between the two sizes around the jump, for every seed."""
    for seed in range(20):
        found = fit(SIZES, blocks(truth, 0.02, seed))
        assert found.breakpoints_bytes == breaks and found.enough


def test_a_jump_that_the_scatter_hides_is_not_claimed():
    """With scatter as wide as the jump, mostly one piece is told."""
    slight = np.where(X <= 16384, LINE, 1.1 * LINE)
    found = Counter(len(fit(SIZES, blocks(slight, 0.3, seed)).pieces) for seed in range(50))
    assert found[1] >= 45


def test_alpha_and_slope_are_the_truth_within_their_intervals():
    """The 95 % interval over blocks holds the truth in about 95 of 100 fits."""
    held = Counter()
    for seed in range(200):
        piece = fit(SIZES, blocks(LINE, 0.02, seed)).pieces[0]
        beta = piece.beta_bytes_per_s
        held["alpha"] += piece.alpha_us.low <= 9.0 <= piece.alpha_us.high
        held["beta"] += beta is not None and beta.low <= 6.5e9 <= beta.high
    assert held["alpha"] >= 180 and held["beta"] >= 180


def test_residuals_are_relative_and_the_prediction_is_the_piece():
    """A size in the middle is predicted by the piece that it falls into."""
    found = fit(SIZES, blocks(JUMP, 1e-4, 0))
    assert max(map(abs, found.residuals)) < 0.001
    assert found.time_us(10_000) == pytest.approx(9.0 + 10_000 / 6.5e3, rel=0.002)
    assert found.time_us(1 << 20) == pytest.approx(25.0 + (1 << 20) / 3e3, rel=0.002)


def test_a_flat_piece_has_no_rate():
    """Where time does not grow with size, β is None and not a large number."""
    found = fit(SIZES[:8], blocks(np.full(8, 4.0), 0.02, 1))
    assert found.pieces[0].beta_bytes_per_s is None
    assert found.pieces[0].alpha_us.value == pytest.approx(4.0, rel=0.05)


def test_what_no_pieces_explain_is_said_to_be_not_enough():
    """A saw-tooth: the most pieces allowed do not do it, and the fit says so."""
    saw = LINE * np.where(np.arange(len(X)) % 2, 1.5, 0.7)
    assert not fit(SIZES, blocks(saw, 0.01, 0)).enough


@pytest.mark.parametrize(
    ("sizes", "times"),
    [([8, 16], [[1, 2]] * 2), ([8, 16, 16], [[1, 2, 3]] * 2), ([8, 16, 32], [[1, 2, 3]]),
     ([8, 16, 32], [[1, 2, 3], [1, 2]]), ([8, 16, 32], [[1, 2, 3], [1, 0, 3]]),
     ([8, 16, 32], [[1, 2, 3], [1, float("nan"), 3]])],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(sizes, times):
    """Two sizes, sizes that do not rise, one block, a block too short, a time of 0 or NaN."""
    with pytest.raises(UsageError, match="fit"):
        fit(sizes, times)
