"""The micro suite on live clusters over shared memory, streams and the mock's queue pairs; what is kept and refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tbkit as tb
from tbkit.cluster import carriers
from tbkit.cluster.links import MEASURES, Bench, Effort, check_nodes
from tbkit.errors import PeerDied, PeerSilent, RankDied, TbkitError, UsageError
from tbkit.fabric.cards import read_links, samples_of

SIZES = (8, 1024, 65536)
QUICK = {"sizes": SIZES, "blocks": 2, "iterations": 50, "budget_s": 0.01}
SUM = "print(fabric.all_reduce(np.ones(4))[0])"
NAMES = [f"local{i}" for i in range(4)]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measurements are kept in the test's own folder."""
    monkeypatch.setenv("TBKIT_RUNS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def cluster_tcp() -> Iterator[Any]:
    """Two local engines over streams."""
    cluster = tb.connect(local=2, carrier="tcp")
    yield cluster
    assert cluster.close() == []


@pytest.mark.parametrize(
    ("effort", "flag"),
    [({"blocks": 1}, "--blocks"), ({"iterations": 1}, "--iterations"), ({"sizes": (0,)}, "--sizes"),
     ({"sizes": (1 << 31,)}, "--sizes")],
)  # fmt: skip
def test_an_effort_that_cannot_be_is_refused(effort: dict[str, Any], flag: str) -> None:
    """One block has no interval; a message has at least one byte and at most a GiB."""
    with pytest.raises(UsageError, match=flag):
        Effort(**effort).check()


def test_one_node_can_only_cross() -> None:
    """Every other measurement needs two."""
    check_nodes("crossing", 1)
    for what in set(MEASURES) - {"crossing"}:
        with pytest.raises(UsageError, match="--local 2"):
            check_nodes(what, 1)


def test_a_carrier_that_cannot_be_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown word; verbs without a library that plays them."""
    monkeypatch.delenv(carriers.LIBRARY, raising=False)
    for carrier, words in (("udp", "shm, tcp, verbs"), ("verbs", "TBKIT_LIBRDMA")):
        with pytest.raises(UsageError, match=words):
            tb.connect(local=2, carrier=carrier)  # type: ignore[arg-type]


def test_the_mocks_cables_are_those_of_the_cabling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device faces one peer; the cabling of some nodes names the same ports and addresses as the mock's."""
    monkeypatch.setenv(carriers.LIBRARY, "libtbmock.so")
    played = carriers.environment("verbs", NAMES, "n")["local0"]["TBKIT_MOCK"].partition("cables=")[2]
    whole = carriers.cabling("verbs", NAMES, range(4))
    some = carriers.cabling("verbs", NAMES, [3, 1])
    assert whole is not None and some is not None and len(whole.cables) == 6
    ends = {end for cable in played.split(",") for end in cable.split("-")}
    for cabling in (whole, some):
        for cable in cabling.cables:
            for end in (cable.low, cable.high):
                assert f"{cabling.nodes[end.rank]}:{end.device}/{end.address}" in ends


def test_a_single_node_and_shared_memory_have_no_cables() -> None:
    """None, and the ranks join by name."""
    assert carriers.cabling("shm", NAMES, range(4)) is None and carriers.cabling("tcp", NAMES, [2]) is None


@pytest.mark.cluster
def test_cards_of_shared_memory_hold_all_pairs_and_every_sample(cluster4: Any, runs: Path) -> None:
    """Six pairs, both directions, all that a card has; samples, versions and the word local are kept."""
    found = cluster4.links(**QUICK)
    pairs = [(a, b) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]]
    assert (
        [card.ends for card in found.cards] == pairs and found.reality == "local" and found.carrier == "shm"
    )
    for card in found.cards:
        for way in card.directions:
            assert [row.bytes for row in way.latency] == [row.bytes for row in way.bandwidth] == list(SIZES)
            assert way.fit is not None and len(way.fit.pieces) == 1
        assert [row.bytes for row in card.both_ways] == list(SIZES)
    assert Path(found.path).is_relative_to(runs) and read_links(found.path) == found
    rows = samples_of(found.path).to_pylist()
    taken = [x for row in rows if row["what"] == "latency" and row["bytes"] == 8 for x in row["us"]]
    assert len(taken) == sum(way.latency[0].iterations for card in found.cards for way in card.directions)
    assert {row["block"] for row in rows} == {0, 1} and {row["timed_by"] for row in rows} == set(NAMES)
    assert all(row["timed_by"] == row["target"] for row in rows if row["what"] == "stream")


@pytest.mark.cluster
def test_all_reduce_is_right_and_stands_beside_the_limit_of_the_mesh(cluster4: Any) -> None:
    """No wrong element on four ranks; busbw = 1.5 × algbw; the limit is three cables."""
    found = cluster4.links("allreduce", **QUICK)
    assert found.good and [row["#wrong"] for row in found.rows()] == [0, 0, 0]
    for row in found.rows():
        assert row["busbw"] == pytest.approx(1.5 * row["algbw"])
        assert row["mesh limit"] == pytest.approx(3 * row["one cable"])
        assert row["algbw"] == pytest.approx(row["size"] / row["time"] / 1e3)


@pytest.mark.cluster
def test_crossing_on_the_cpu_is_called_a_cut_graph(cluster4: Any) -> None:
    """A row a node and width, paired; never called a fence where there is no GPU."""
    found = cluster4.links("crossing", sizes=(64,), blocks=2)
    assert [cut.node for cut in found.cuts] == NAMES and {cut.pieces for cut in found.cuts} == {32}
    if found.device == "cpu":
        assert "only a Mac can show" in str(found._repr_mimebundle_()["text/plain"])


@pytest.mark.cluster
def test_streams_form_a_group_that_works_and_is_measured(cluster_tcp: Any) -> None:
    """%px sums over it; a model's smaller groups form too; the cable is named by its ends' addresses."""
    view = cluster_tcp.client[:]
    assert [x.strip() for x in view.execute(SUM, silent=False, block=True).stdout] == ["2.0"] * 2
    cluster_tcp.join([1, 0])
    found = cluster_tcp.links("lat", **QUICK)
    (card,) = found.cards
    assert card.ends == ("local0:127.0.0.1", "local1:127.0.0.1") and card.carrier == "tcp"
    assert all(row.t_min_us > 0.5 for way in card.directions for row in way.latency)


@pytest.mark.cluster
def test_a_mesh_that_lost_a_rank_says_so_and_forms_again(cluster_tcp: Any) -> None:
    """A rank killed in mid-loop: the error names it; the next measurement works on a new mesh."""
    victim = cluster_tcp.status()[1]["rank_pid"]
    bench = Bench(cluster_tcp, Effort(), lambda _: None)
    os.kill(victim, 9)
    with pytest.raises(TbkitError) as caught:
        bench.ask([0, 1], "latency", [8], iterations=10_000, each=[{"peer": 1}, {"peer": 0}])
    assert isinstance(caught.value, RankDied | PeerDied | PeerSilent) and "local1" in str(caught.value)
    assert cluster_tcp.links("lat", **QUICK).cards


@pytest.mark.cluster
def test_the_same_seed_is_the_same_order(cluster_tcp: Any) -> None:
    """And all of it is a recorded factor."""
    orders = [Bench(cluster_tcp, Effort(seed=7), lambda _: None).shuffled(range(20)) for _ in range(2)]
    assert orders[0] == orders[1] != list(range(20))
    facts = Bench(cluster_tcp, Effort(seed=7), lambda _: None).facts("lat")
    assert facts["factors"]["seed"] == 7 and facts["factors"]["versions"]["tbkit"]


@pytest.mark.cluster
@pytest.mark.slow
def test_the_mocks_queue_pairs_carry_a_group_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word is mock, the ends are devices."""
    spec = find_spec("tbkit._kernels")
    assert spec is not None and spec.origin is not None
    library = next(Path(spec.origin).parent.glob("libtbmock.*"), None)
    if library is None:
        pytest.skip(reason="the mock librdma was not built: no <infiniband/verbs.h> here")
    monkeypatch.setenv(carriers.LIBRARY, str(library))
    with tb.connect(local=2, carrier="verbs") as cluster:
        found = cluster.links("lat", **QUICK)
    assert found.reality == "mock" and found.cards[0].ends == ("local0:rdma_en2", "local1:rdma_en2")
