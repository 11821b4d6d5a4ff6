"""Rows hold what the samples hold: nothing dropped, the field's names, units that are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbkit.fabric.cards import build
from tests.fabric.cards import synthetic

LATENCY = [
    "#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]",
    "99% percentile[usec]", "99.9% percentile[usec]",
]  # fmt: skip
BANDWIDTH = ["#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"]


def test_latency_has_perftests_columns_and_drops_nothing():
    """The slowest sample is t_max, and counts; half a nanosecond is not rounded away."""
    blocks = [np.array([1.0, 2.0, 3.0, 0.1115]), np.array([1.0, 2.0, 3.0, 900.0])]
    row = build.latency_row(8, blocks).columns()
    assert list(row) == LATENCY
    assert row["#iterations"] == 8 and row["t_max[usec]"] == 900.0 and row["t_min[usec]"] == 0.1115
    assert row["t_typical[usec]"] == 2.0 and row["99.9% percentile[usec]"] == 900.0
    assert row["t_stdev[usec]"] == pytest.approx(np.concatenate(blocks).std(ddof=1))


@given(
    st.lists(st.floats(0.01, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0])
)
def test_a_percentile_is_a_sample_of_nearest_rank(values, share):
    """At least ``share`` of the samples are not above it, and fewer are below it."""
    ordered = np.sort(np.array(values))
    found = build.percentile(ordered, share)
    assert found in ordered
    assert (ordered <= found).sum() >= share * len(ordered) - 1e-6
    assert (ordered < found).sum() < share * len(ordered) + 1e-6


def test_99_of_1000_is_the_990th():
    """Not the 991st, which the field's own tool gives."""
    assert build.percentile(np.arange(1.0, 1001.0), 0.99) == 990.0
    assert build.percentile(np.arange(1.0, 1001.0), 0.999) == 999.0


def test_bandwidth_is_what_arrived_over_the_time_it_took():
    """Total over total; the peak is the best window; an MB is 2^20 bytes, as perftest has it."""
    blocks = [np.array([[10.0, 100.0], [10.0, 50.0]]), np.array([[20.0, 150.0]])]
    row = build.bandwidth_row(1 << 20, blocks)
    columns = row.columns()
    assert list(columns) == BANDWIDTH
    assert columns["BW average[MB/sec]"] == pytest.approx(40 / 300e-6)
    assert columns["BW peak[MB/sec]"] == pytest.approx(10 / 50e-6)
    assert columns["MsgRate[Mpps]"] == pytest.approx(40 / 300)
    assert columns["#iterations"] == 40
    assert row.messages_per_s.value == pytest.approx(row.block_bytes_per_s.value / (1 << 20))


def test_both_ways_add_up():
    """The rates of the two directions, block by block."""
    one = [np.array([[10.0, 100.0]]), np.array([[10.0, 100.0]])]
    other = [np.array([[10.0, 50.0]]), np.array([[10.0, 50.0]])]
    row = build.both_row(1000, one, other)
    assert row.average_bytes_per_s == pytest.approx(1000 * (0.1 + 0.2) * 1e6)
    assert row.block_bytes_per_s.low == pytest.approx(row.average_bytes_per_s) and row.iterations == 40


def test_a_direction_knows_its_cause():
    """α, β and stream of a made-up cable are what it was made of."""
    way = synthetic.card("a", "b", synthetic.TB4).there
    assert way.alpha_us is not None and way.alpha_us.value == pytest.approx(9.6, rel=0.05)
    assert way.beta_bytes_per_s is not None and way.beta_bytes_per_s.value == pytest.approx(3e9, rel=0.05)
    assert way.stream is not None and way.stream.block_bytes_per_s.value == pytest.approx(3e9, rel=0.05)
    assert way.fit is not None and len(way.fit.pieces) == 1
    assert way.message_rate is not None and way.message_rate.value == pytest.approx(2.37e6, rel=0.05)


def test_a_collective_takes_as_long_as_its_slowest_rank_and_counts_wrong_elements():
    """Per block the median of the slowest rank; busbw is algbw × 2 (p − 1) / p."""
    ranks = [[np.array([10.0, 10.0, 0.0])] * 3, [np.array([30.0, 30.0, 2.0])] * 3]
    row = build.collective_row(4000, ranks)
    assert row.time_us.value == pytest.approx(30.0) and row.wrong == 6 and row.iterations == 6
    assert row.algbw_bytes_per_s == pytest.approx(4000 / 30e-6)
    assert row.busbw_bytes_per_s(4) == pytest.approx(1.5 * row.algbw_bytes_per_s)


def test_a_cut_costs_the_difference_of_its_turn():
    """Paired: a drift that hits both of a turn does not count."""
    drift = np.array([1.0, 50.0, 3.0])[:, None]
    blocks = [np.array([[100.0, 100.0 + 31 * 2.0]]) + drift for _ in range(3)]
    row = build.cut_row("n", 64, 32, blocks)
    assert row.cut_cost_us.value == pytest.approx(2.0) and row.cut_cost_us.low == pytest.approx(2.0)
