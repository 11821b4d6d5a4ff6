"""Real verbs between nodes: the bits of shared memory, no message lost, and every loss named with node and cable.

One set of ranks serves all tests, since a start costs seconds; the test that kills a node stands last.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tbkit.errors import CorruptFrame, FabricTimeout, PeerDied, PeerSilent, TbkitError
from tbkit.fabric import join
from tests.fabric.worker import as_array, make_bits
from tests.rack.rack import Rack
from tests.rack.ranks import SILENCE_S, Ranks, are_errors

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(240)]

DEADLINE_S = 20.0
LATE_S = 10.0  # of emulation, beyond a deadline
REDUCE = """
x = as_array(kind, make_bits(kind, count, seed, rank))
result = g.all_reduce(x, None, op, algorithm=algorithm, dtype=kind).tobytes().hex()
"""
# Sizes and contents from one seed at both ends; the receiver compares every byte.
STREAM = """
rng = np.random.default_rng(7)
pool = rng.integers(0, 256, 16 << 20, dtype=np.uint8)
sizes = np.exp(rng.uniform(np.log(low), np.log(high + 1), messages)).astype(int)
starts = rng.integers(0, (16 << 20) - sizes)
into, wrong = np.empty(high, np.uint8), 0
for at, n in zip(starts, sizes):
    if rank == sender:
        g.send(pool[at : at + n], 1 - sender)
    elif rank == 1 - sender:
        g.recv(into[:n], sender)
        wrong += not np.array_equal(into[:n], pool[at : at + n])
result = [int(sizes.sum()), wrong]
"""
UNTIL_FAULT = f"""
g.barrier()
while True:
    g.all_reduce(np.ones(30000), deadline_s={DEADLINE_S})
"""


@pytest.fixture(scope="module")
def ranks(whole_rack: Rack) -> Iterator[Ranks]:
    """A rank on each of the four nodes."""
    whole_rack.restore()
    started = Ranks(whole_rack, whole_rack.numbers)
    yield started
    started.end()


def formed(ranks: Ranks, carrier: str, among: list[int] | None = None) -> None:
    """A new group on these ranks; none may fail."""
    answers = ranks.form(carrier, among)
    assert not any(isinstance(answer, TbkitError) for answer in answers), answers


def over_shared_memory(kind: str, op: str, algorithm: str, count: int, seed: int, size: int) -> str:
    """The same reduction by ranks of this machine, as threads."""
    found = [""] * size

    def run(rank: int) -> None:
        with join(f"rack-{seed}", rank, size) as group:
            x = as_array(kind, make_bits(kind, count, seed, rank))
            found[rank] = group.all_reduce(x, None, op, algorithm=algorithm, dtype=kind).tobytes().hex()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("carrier", ["verbs", "tcp"])
def test_four_nodes_reduce_to_the_bits_of_shared_memory(ranks: Ranks, carrier: str) -> None:
    """Kinds, operations, both algorithms, sizes around a frame: every node has what one machine computes."""
    formed(ranks, carrier)
    cases = [
        ("bfloat16", "sum", 576),
        ("float32", "sum", 1017),
        ("float16", "max", 33001),
        ("int32", "min", 70001),
    ]
    for seed, (kind, op, count) in enumerate(cases, start=1):
        for algorithm in ("direct", "scatter"):
            case: dict[str, Any] = {
                "kind": kind,
                "op": op,
                "algorithm": algorithm,
                "count": count,
                "seed": seed,
            }
            assert set(ranks.run(REDUCE, **case)) == {over_shared_memory(**case, size=4)}, case
    ranks.run("g.close()")


@pytest.mark.parametrize(("messages", "low", "high"), [(10_000, 1, 64 << 10), (20, 64 << 10, 8 << 20)])
def test_no_message_is_lost_or_damaged_on_a_whole_cable(
    ranks: Ranks, messages: int, low: int, high: int
) -> None:
    """Log-uniform sizes over verbs, one direction then the other: every byte arrives."""
    formed(ranks, "verbs", [0, 1])
    for sender in (0, 1):
        case = {"messages": messages // 2, "low": low, "high": high, "sender": sender}
        answers = ranks.run(STREAM, [0, 1], **case)
        assert not any(isinstance(answer, TbkitError) for answer in answers), answers
        assert answers[0][0] == answers[1][0] > 0 and answers[1 - sender][1] == 0
    ranks.run("g.close()", [0, 1])


def test_a_lossy_cable_is_found_out_within_the_deadline(ranks: Ranks) -> None:
    """Two per cent of the packets are lost: a gap, a wait that ends, or silence; never a wrong sum."""
    formed(ranks, "verbs", [0, 1])
    code = f"""
expected = np.arange(30000.0) * 2
while True:
    assert np.array_equal(g.all_reduce(np.arange(30000.0), deadline_s={DEADLINE_S}), expected)
"""
    begun = ranks.begin(code, [0, 1])
    ranks.rack.lose(1, 2, percent=2)
    answers = ranks.collect(begun, DEADLINE_S + LATE_S + 20)
    ranks.rack.lose(1, 2, percent=0)
    assert are_errors(answers, (CorruptFrame, FabricTimeout, PeerSilent)), answers
    assert any("mac1:rdma_en2 to mac2:rdma_en1" in str(answer) for answer in answers), answers


def check_survivors(ranks: Ranks, begun: list[int], kinds: tuple[type[TbkitError], ...], named: str) -> None:
    """Every survivor raised, names what was lost, in time."""
    answers = ranks.collect(begun, DEADLINE_S + LATE_S + 20)
    assert are_errors(answers, kinds), answers
    assert all(named in str(answer) for answer in answers), answers
    assert max(answer.facts["elapsed_s"] for answer in answers) < DEADLINE_S + LATE_S


def check_new_mesh(ranks: Ranks, among: list[int]) -> None:
    """The survivors form a group of their own, and it sums."""
    formed(ranks, "verbs", among)
    assert ranks.run("result = float(g.all_reduce(np.ones(1))[0])", among) == [float(len(among))] * len(among)
    ranks.run("g.close()", among)


def test_a_pulled_cable_is_named_by_every_rank(ranks: Ranks) -> None:
    """Link down in mid-collective: all four raise and name the cable's ends; three form a mesh without it."""
    formed(ranks, "verbs")
    begun = ranks.begin(UNTIL_FAULT)
    ranks.rack.pull(1, 2)
    check_survivors(ranks, begun, (PeerSilent, FabricTimeout), "mac1:rdma_en2 to mac2:rdma_en1")
    check_new_mesh(ranks, [0, 2, 3])
    ranks.rack.plug(1, 2)


def test_a_frozen_node_is_named_by_every_survivor(ranks: Ranks) -> None:
    """Its processor stops in mid-collective: silence names node and cable; two form a mesh without it."""
    formed(ranks, "verbs", [0, 1, 2])
    begun = ranks.begin(UNTIL_FAULT, [0, 1, 2])
    ranks.rack.freeze(3)
    check_survivors(ranks, begun[:2], (PeerSilent, FabricTimeout), "on mac3, cable mac")
    check_new_mesh(ranks, [0, 1])
    ranks.rack.thaw(3)
    ranks.collect(begun[2:], SILENCE_S + DEADLINE_S + LATE_S + 20)


def test_a_killed_node_is_named_by_every_survivor(ranks: Ranks) -> None:
    """A power cut in mid-collective: all survivors name node and cable, and form a mesh of their own."""
    formed(ranks, "verbs")
    begun = ranks.begin(UNTIL_FAULT)
    ranks.rack.kill(4)
    check_survivors(ranks, begun[:3], (PeerSilent, PeerDied, FabricTimeout), "on mac4, cable mac")
    check_new_mesh(ranks, [0, 1, 2])
