"""A cabling says what leads where, and refuses what cannot be, naming it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbkit.errors import UsageError
from tbkit.fabric import Cable, Cabling, End

NODES = ["mac1", "mac2", "mac3", "mac4"]


def cable(a: int, b: int, one: str = "", other: str = "") -> Cable:
    """A cable between two ranks, each end with an address of its own."""
    return Cable(End(a, f"10.{a}.{b}.1", one), End(b, f"10.{a}.{b}.2", other), "verbs" if one else "tcp")


def matrix_addresses(devices: list[list[object]]) -> dict[tuple[int, str], str]:
    """An address for each device of a matrix."""
    found: dict[tuple[int, str], str] = {}
    for rank, row in enumerate(devices):
        for entry in row:
            for name in [entry] if isinstance(entry, str) else entry or []:
                found[rank, name] = f"169.254.{rank}.{len(found)}"
    return found


def test_ends_stand_in_rank_order() -> None:
    """However a cable is written, its lower rank comes first."""
    turned = Cabling(NODES[:2], [Cable(End(1, "10.0.0.2"), End(0, "10.0.0.1"))])
    assert turned.cables[0].pair == (0, 1) and turned.cables[0].low.address == "10.0.0.1"


@given(st.integers(2, 6), st.data())
def test_every_pair_is_joined_once_a_cable_or_a_named_relay(size: int, data: st.DataObject) -> None:
    """Each pair has cables, or one relay that has a cable to both; or the map is refused by the pair's names."""
    nodes = [f"mac{k}" for k in range(size)]
    pairs = list(combinations(range(size), 2))
    laid = data.draw(st.sets(st.sampled_from(pairs)))
    try:
        cabling = Cabling(nodes, [cable(*pair) for pair in laid])
    except UsageError as error:
        assert "neither" in error.got
        return
    relayed = {relay.pair: relay.via for relay in cabling.relays}
    assert set(relayed) == set(pairs) - laid
    for (a, b), via in relayed.items():
        assert {tuple(sorted((a, via))), tuple(sorted((b, via)))} <= laid
        assert f"{nodes[a]} to {nodes[b]}: no cable, relayed by {nodes[via]}" in str(cabling)


def test_ranks_of_one_node_need_no_cable() -> None:
    """Two ranks with the same node's name share memory."""
    assert Cabling(["mac1", "mac1", "mac2"], [cable(0, 2), cable(1, 2)]).relays == ()


def test_a_device_matrix_becomes_cables() -> None:
    """MLX's matrix: the k-th device towards a peer faces the k-th device back."""
    devices = [[None, ["rdma_en2", "rdma_en3"]], [["rdma_en5", "rdma_en4"], None]]
    cabling = Cabling.from_devices(NODES[:2], devices, matrix_addresses(devices))
    assert [(c.low.device, c.high.device) for c in cabling.between(1, 0)] == [
        ("rdma_en2", "rdma_en5"),
        ("rdma_en3", "rdma_en4"),
    ]
    assert str(cabling).splitlines()[0] == "mac1:rdma_en2 to mac2:rdma_en5 (verbs)"


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([[None, "rdma_en2"], [None, None]], "as many devices from mac1 to mac2 as back"),
        ([[None, "rdma_en2"]], "one row and one column a node"),
        (
            [[None, "rdma_en2", "rdma_en2"], ["rdma_en2", None, "rdma_en3"], ["rdma_en2", "rdma_en3", None]],
            "mac1:rdma_en2: a device faces one peer",
        ),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(devices: list[list[object]], said: str) -> None:
    """Asymmetric, too short, or one device towards two peers: the message names the place."""
    with pytest.raises(UsageError, match=said):
        Cabling.from_devices(NODES[: len(devices[0])], devices, matrix_addresses(devices))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cables", "said"),
    [
        ([cable(0, 5)], "rank 5"),
        ([cable(1, 1)], "rank 1 with itself"),
        ([Cable(End(0, "mac1.local"), End(1, "10.0.0.2"))], "never a name"),
        ([Cable(End(0, "10.0.0.1"), End(1, "10.0.0.2"), "verbs")], "an RDMA device at each end"),
        (
            [cable(0, 1, "rdma_en2", "rdma_en2"), cable(0, 1, "rdma_en2", "rdma_en3")],
            "mac1:rdma_en2.*2 cables",
        ),
        ([cable(0, 1, "x" * 32, "rdma_en2")], "at most 31 bytes"),
    ],
)
def test_a_cable_that_cannot_be_is_refused(cables: list[Cable], said: str) -> None:
    """Each wrong cable has its own reason."""
    with pytest.raises(UsageError, match=said):
        Cabling(NODES[:2], cables)


def test_survivors_keep_their_cables_and_get_new_ranks() -> None:
    """What is left after a node's loss is a cabling of its own; a pair that lost its relay is refused."""
    full = Cabling(NODES, [cable(a, b) for a, b in combinations(range(4), 2)])
    left = full.without({1})
    assert left.nodes == ("mac1", "mac3", "mac4") and [c.pair for c in left.cables] == [
        (0, 1),
        (0, 2),
        (1, 2),
    ]
    star = Cabling(NODES[:3], [cable(0, 1), cable(1, 2)])
    with pytest.raises(UsageError, match="mac1 and mac3"):
        star.without({1})
