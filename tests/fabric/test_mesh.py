"""Groups over several nodes: every carrier gives the bits of shared memory; strangers and losses are named."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tbkit import _kernels
from tbkit.errors import FabricTimeout, InputError, LinkFailed, PeerDied, PeerSilent, TbkitError, UsageError
from tbkit.fabric import Cabling, Group, Mesh, form
from tbkit.fabric.notes import unpack

MOCK = Path(_kernels.__file__).parent / (
    "libtbmock.so" if os.uname().sysname == "Linux" else "libtbmock.dylib"
)

# Forms a group over a cabling in workers: `nodes`, `cables` as rows of Cable arguments, `folder` for the cards.
FORM = """
import os
from pathlib import Path
from tbkit.fabric import Cable, Cabling, End, form, over_folder
os.environ.update(environment)
cabling = Cabling(nodes, [Cable(End(*a), End(*b), carrier) for a, b, carrier in cables])
g = form(cabling, rank, over_folder(Path(folder), rank, size), deadline_s=20.0, silence_s=silence_s)
result = repr(g)
"""
REDUCE = """
x = as_array(kind, make_bits(kind, count, seed, rank))
result = over.all_reduce(x, None, op, algorithm=algorithm, dtype=kind).tobytes()
"""


def require_mock() -> None:
    """Skip where the module was built without the verbs header; with STRICT that fails."""
    if MOCK.exists():
        return
    missing = "built without <infiniband/verbs.h>: install libibverbs-dev and run make setup"
    if os.environ.get("STRICT", "") not in ("", "0"):
        pytest.fail(missing)
    pytest.skip(reason=missing)


def address(rank: int, peer: int) -> str:
    """Of a rank on its cable to a peer, from the loopback network."""
    low, high = sorted((rank, peer))
    return f"127.{low + 1}.{high + 1}.{rank + 1}"


def device(rank: int, peer: int) -> str:
    """The RDMA device of a rank towards a peer."""
    return f"rdma_en{peer + 2 if peer > rank else peer + 1}"


def rows(pairs: Sequence[tuple[int, int]], carrier: str) -> list[tuple[Any, ...]]:
    """Cables between pairs, as FORM takes them."""
    name = device if carrier == "verbs" else lambda *_: ""
    return [((a, address(a, b), name(a, b)), (b, address(b, a), name(b, a)), carrier) for a, b in pairs]


def mock_environment(
    cables: Sequence[tuple[Any, ...]], nodes: Sequence[str], namespace: str
) -> list[dict[str, str]]:
    """What each rank must have set to find its devices in the mock librdma."""
    joins = ",".join(
        f"{nodes[a[0]]}:{a[2]}/{a[1]}-{nodes[b[0]]}:{b[2]}/{b[1]}"
        for a, b, carrier in cables
        if carrier == "verbs"
    )
    return [
        {"TBKIT_LIBRDMA": str(MOCK), "TBKIT_MOCK": f"namespace={namespace}; node={node}; cables={joins}"}
        for node in nodes
    ]


def meshed(
    ranks: Any, nodes: Sequence[str], cables: Sequence[tuple[Any, ...]], folder: Path, **more: Any
) -> None:
    """Have the first ranks form a group ``g`` over the cabling."""
    environments = mock_environment(cables, nodes, f"{os.getpid()}-{folder.name}")
    folder.mkdir(exist_ok=True)
    answers = ranks.run(
        FORM,
        list(range(len(nodes))),
        {"environment": environments},
        nodes=list(nodes),
        cables=list(cables),
        folder=str(folder),
        **({"silence_s": 10.0} | more),
    )
    assert not any(isinstance(answer, TbkitError) for answer in answers), answers


PAIRS2, PAIRS3 = [(0, 1)], list(combinations(range(3), 2))
CABLINGS = {
    "tcp": (["a", "b", "c"], rows(PAIRS3, "tcp")),
    "verbs": (["a", "b", "c"], rows(PAIRS3, "verbs")),
    "verbs and tcp": (["a", "b", "c"], rows([(0, 1)], "verbs") + rows([(0, 2), (1, 2)], "tcp")),
    "two cables a pair": (["a", "b", "c"], rows(PAIRS3, "tcp") + rows(PAIRS3, "tcp")),
    "relayed": (["a", "b", "c"], rows([(0, 1), (1, 2)], "tcp")),
    "shared memory and tcp": (["a", "a", "c"], rows([(0, 2), (1, 2)], "tcp")),
}


@pytest.mark.parametrize("name", CABLINGS)
def test_every_carrier_gives_the_bits_of_shared_memory(victims: Any, name: str, tmp_path: Path) -> None:
    """All kinds, operations and algorithms, sizes around a frame: the same bits on every rank, of every carrier."""
    nodes, cables = CABLINGS[name]
    if "verbs" in name:
        require_mock()
    ranks = victims.group(3)
    victims.run("shared = g", ranks)
    meshed(victims, nodes, cables, tmp_path / "cards")
    seed = 0
    for kind, op in (
        ("bfloat16", "sum"),
        ("float32", "sum"),
        ("float16", "max"),
        ("float64", "min"),
        ("int32", "sum"),
    ):
        for count in (0, 1, 1009, 4064, 16376, 50001):
            for algorithm in ("direct", "scatter"):
                seed += 1
                case = {"kind": kind, "op": op, "count": count, "algorithm": algorithm, "seed": seed}
                ours = victims.run("over = g\n" + REDUCE, ranks, **case)
                theirs = victims.run("over = shared\n" + REDUCE, ranks, **case)
                assert ours == theirs and len(set(ours)) == 1, case


def test_send_gather_and_broadcast_cross_nodes(victims: Any, tmp_path: Path) -> None:
    """The other calls of a group work over streams, in place and out of place."""
    meshed(victims, ["a", "b"], rows(PAIRS2, "tcp"), tmp_path / "cards")
    code = """
    x = np.arange(70001, dtype=np.float32) + rank
    g.broadcast(x, 1)
    y = g.all_gather(np.full(3, rank))
    if rank == 0:
        g.send(x, 1)
        back = np.empty_like(x)
    else:
        back = g.recv(np.empty_like(x), 0)
        assert (back == x).all()
    g.barrier()
    result = (float(x[0]), y.tolist(), len(g.pingpong(1 - rank, 64, 10)), len(g.window(1 - rank, 5000, 4, 10)))
    """
    for answer in victims.run("\n".join(line[4:] for line in code.splitlines()), [0, 1]):
        assert answer == (1.0, [[0, 0, 0], [1, 1, 1]], 10, 10)


def test_a_killed_rank_is_named_with_its_node_and_cable(victims: Any, tmp_path: Path) -> None:
    """SIGKILL in a collective: both survivors say who, where and over which cable, at once."""
    meshed(victims, ["a", "b", "c"], rows(PAIRS3, "tcp"), tmp_path / "cards")
    victims.start("g.barrier()\nresult = g.all_reduce(np.ones(4))", [0, 1], {})
    victims.ranks[2].ask("g.barrier()\nimport time\ntime.sleep(60)", {})
    time.sleep(0.5)
    began = time.monotonic()
    victims.ranks[2].process.kill()
    for answer in victims.collect([0, 1]):
        assert isinstance(answer, PeerDied) and answer.facts["peer"] == 2
        assert "rank 2 ended or left the group on c, cable" in str(answer) and "to c:127." in str(answer)
    assert time.monotonic() - began < 5.0


def test_a_frozen_rank_is_silent_and_the_others_form_anew(victims: Any, tmp_path: Path) -> None:
    """SIGSTOP: nothing is heard for `silence_s`; then a new mesh among the survivors works."""
    meshed(victims, ["a", "b", "c"], rows(PAIRS3, "tcp"), tmp_path / "cards", silence_s=1.5)
    victims.run("g.barrier()", [0, 1, 2])
    victims.ranks[2].process.send_signal(signal.SIGSTOP)
    for answer in victims.run("result = g.all_reduce(np.ones(4), deadline_s=15.0)", [0, 1]):
        assert isinstance(answer, PeerSilent) and answer.facts["peer"] == 2 and " on c, cable" in str(answer)
    meshed(victims, ["a", "b"], rows(PAIRS2, "tcp"), tmp_path / "again")
    assert victims.run("result = float(g.all_reduce(np.ones(1))[0])", [0, 1]) == [2.0, 2.0]


def test_a_rank_that_thaws_before_anyone_waits_is_no_loss(victims: Any, tmp_path: Path) -> None:
    """Silence ends a wait, not a group: a rank that is heard again was not lost."""
    meshed(victims, ["a", "b"], rows(PAIRS2, "tcp"), tmp_path / "cards", silence_s=0.7)
    victims.ranks[1].process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    victims.ranks[1].process.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert victims.run("result = float(g.all_reduce(np.ones(1))[0])", [0, 1]) == [2.0, 2.0]


def test_an_interrupt_reaches_other_nodes(victims: Any, tmp_path: Path) -> None:
    """interrupt() on one rank ends the wait of a rank elsewhere."""
    meshed(victims, ["a", "b"], rows(PAIRS2, "tcp"), tmp_path / "cards")
    victims.ranks[0].ask("g.barrier(deadline_s=30.0)", {})
    victims.ranks[1].ask("import time\ntime.sleep(0.3)\ng.interrupt([0])\ntime.sleep(1.0)", {})
    assert type(victims.ranks[0].answer()).__name__ == "Interrupted"
    victims.ranks[1].answer()


# Two ranks as threads of this process: what stands between them can be looked at.
class Plane:
    """An exchange between threads."""

    def __init__(self, size: int) -> None:
        self.notes: list[list[bytes]] = []
        self.size, self.met = size, threading.Barrier(size)

    def exchange(self, rank: int) -> Callable[[bytes], list[bytes]]:
        rounds: list[list[bytes]] = []

        def one(note: bytes) -> list[bytes]:
            with contextlib.suppress(IndexError):
                self.notes[len(rounds)][rank] = note
            self.met.wait(20)
            rounds.append(self.notes[len(rounds)])
            return list(rounds[-1])

        return one


def formed(
    cabling: Cabling, during: Callable[[Plane], None] = lambda _: None, deadline_s: float = 10.0
) -> list[Any]:
    """Each rank's group, or the error that it got; ``during`` runs once the first cards are there."""
    size = len(cabling.nodes)
    plane = Plane(size)
    plane.notes = [[b""] * size for _ in range(2)]
    answers: list[Any] = [None] * size

    def run(rank: int) -> None:
        exchange, rounds = plane.exchange(rank), []

        def watched(note: bytes) -> list[bytes]:
            rounds.append(note)
            notes = exchange(note)
            if rank == 0 and len(rounds) == 1:
                during(plane)
            return notes

        try:
            answers[rank] = form(cabling, rank, watched, deadline_s=deadline_s)
        except TbkitError as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return answers


def closed(groups: Sequence[Any]) -> None:
    """Leave all groups; each must be one."""
    for group in groups:
        assert isinstance(group, Group), group
        group.close()


def listening() -> list[tuple[str, int]]:
    """Where this process listens."""
    return [tuple(c.laddr) for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def token_of(plane: Plane) -> bytes:
    """What the ranks' cards make together; a card's random bytes stand after its first 16."""
    salts = [np.frombuffer(unpack(note)[16:48], dtype=np.uint8) for note in plane.notes[0]]  # type: ignore[index]
    return bytes(np.bitwise_xor.reduce(salts))


def hello(
    token: bytes, version: int = 1, purpose: int = 0, cable: int = 0, sender: int = 1, to: int = 0
) -> bytes:
    """The first bytes on a connection."""
    return token + struct.pack("<IHBBBB6x", 0x6F6C6C68, version, purpose, cable, sender, to)


PAIR = Cabling.mesh(["a", "b"], ["127.0.0.1", "127.0.0.2"])


def test_strangers_are_refused_before_their_bytes_are_read() -> None:
    """Silent guests, garbage, half a token and a wrong one change nothing: the group forms beside them."""
    said = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 31, hello(b"\1" * 32), os.urandom(4096)]
    guests: list[socket.socket] = []

    def visit(_plane: Plane) -> None:
        assert listening() and {host for host, _ in listening()} <= {"127.0.0.1", "127.0.0.2"}
        for host, port in listening():
            for words in said:
                guests.append(socket.create_connection((host, port), timeout=5))
                guests[-1].sendall(words)

    groups = formed(PAIR, visit)
    assert listening() == [], "nothing listens once the group is there"
    closed(groups)
    for guest in guests:
        guest.close()


@pytest.mark.parametrize(
    ("words", "got"),
    [
        ({"version": 2}, "another version"),
        ({"cable": 7}, "another cabling"),
        ({"to": 1, "sender": 0}, "another"),
        ({"purpose": 9}, "another cabling"),
    ],
)
def test_a_peer_that_knows_the_token_but_says_otherwise_is_an_error(words: dict[str, int], got: str) -> None:
    """A wrong version, cable, rank or purpose of one who was in the exchange ends the attempt, with the reason."""

    def visit(plane: Plane) -> None:
        for host, port in listening():
            if host == "127.0.0.1":
                guests.append(socket.create_connection((host, port), timeout=5))
                guests[-1].sendall(hello(token_of(plane), **words))

    guests: list[socket.socket] = []
    answers = formed(PAIR, visit, deadline_s=3.0)
    assert any(isinstance(answer, LinkFailed) and got in answer.got for answer in answers), answers
    for one in guests:
        one.close()


@pytest.mark.parametrize("spoil", ["bit", "short", "long", "empty", "swapped", "garbage"])
def test_a_card_that_is_damaged_or_of_another_rank_is_refused(spoil: str) -> None:
    """Cards come from other processes: each kind of damage is LinkFailed on the card, and both sockets are closed."""
    meshes = [Mesh(PAIR, rank) for rank in (0, 1)]
    good, card = (mesh.card for mesh in meshes)
    bad = {
        "bit": card[:20] + bytes([card[20] ^ 1]) + card[21:],
        "short": card[:-5],
        "long": card + b"\0\0\0\0",
        "empty": b"",
        "swapped": good,
        "garbage": os.urandom(len(card)),
    }[spoil]
    with pytest.raises(LinkFailed, match="card"):
        meshes[0].connect([good, bad], 5.0)
    for mesh in meshes:
        mesh.close()
    assert listening() == []


def test_a_rank_that_fails_tells_the_others_in_the_exchange() -> None:
    """One node lacks the address that the cabling names: both ranks raise, and the message names that node."""
    wrong = Cabling.mesh(["a", "b"], ["127.0.0.1", "192.0.2.9"])
    answers = formed(wrong)
    assert all(isinstance(answer, LinkFailed) for answer in answers), answers
    assert "b: " in str(answers[0]) and "address that the cabling names" in str(answers[0])


def test_a_peer_that_never_dials_is_a_timeout_with_its_name() -> None:
    """The deadline ends the wait for connections; the absent node is named."""
    lone, other = Mesh(PAIR, 0), Mesh(PAIR, 1)
    began = time.monotonic()
    with pytest.raises(LinkFailed, match="nothing from b"):
        lone.connect([lone.card, other.card], 0.5)
    assert 0.4 < time.monotonic() - began < 5.0
    lone.close(), other.close()


def test_a_closed_mesh_says_so() -> None:
    """Every call on a mesh that is closed, or that a group took over, is one line."""
    mesh = Mesh(PAIR, 0)
    mesh.close()
    with pytest.raises(TbkitError, match="takes no call"):
        _ = mesh.card
    with pytest.raises(UsageError, match="a rank of them"):
        Mesh(PAIR, 5)


@pytest.mark.parametrize("note", [b"", b"\xc1", b"\x01", b"\x81\xa1x\x01"])
def test_a_note_that_is_none_is_refused(note: bytes) -> None:
    """What an exchange hands over may be anything: InputError, never another exception."""
    with pytest.raises(InputError, match="note of a rank"):
        unpack(note)


def test_bare_loops_need_shared_memory(victims: Any, tmp_path: Path) -> None:
    """What only one node has is refused over a cable, and the exchange's deadline names who did not come."""
    meshed(victims, ["a", "b"], rows(PAIRS2, "tcp"), tmp_path / "cards")
    for answer in victims.run("g.bare_pingpong(1 - rank, 5)", [0, 1]):
        assert isinstance(answer, TbkitError)
    code = "from pathlib import Path\nfrom tbkit.fabric import over_folder\nover_folder(Path(folder), 0, 2, 0.3)(b'x')"
    (answer,) = victims.run(code, [0], folder=str(tmp_path))
    assert isinstance(answer, FabricTimeout) and answer.facts["absent"] == [1]
