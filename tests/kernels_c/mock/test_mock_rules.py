"""Every rule of the mock with it and without it, both ends of the cable in one process.

Numbers of completion status are those of the header: 0 success, 1 local length, 4 local protection, 5 flushed,
9 remote invalid request.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernels_c.mock.programs import MOCK, Asker

pytestmark = pytest.mark.slow

WHOLE = ["send 0 4096", "recv 0 4096", "data intact", "post 0 0", "send 0 8192", "recv 0 8192"]
WORKS = "query_port 0 alloc_pd 0 poll 0"
WEDGED = "query_port EIO alloc_pd EIO poll -1"

# rule, what is set, program, question, answer
RULES: list[tuple[str, str, str, str, list[str]]] = [
    ("frames", "", "messages", "exchange 4096 8192",
     ["send 9 4096", "recv 1 0", "data other", "post 0 0", "send 5 8192", "recv 5 0"]),
    ("frames", "", "messages", "exchange 4097 8192", ["send 0 4097", "recv 0 4097", *WHOLE[2:]]),
    ("frames", "frames=off", "messages", "exchange 4096 8192", WHOLE),
    ("frames", "frames=off", "messages", "exchange 8192 4096",
     ["send 9 8192", "recv 1 0", "data other", "post 0 0", "send 5 4096", "recv 5 0"]),
    ("credits", "", "messages", "unmatched", ["before nothing", "recv 0 4096", "after 0 4096"]),
    ("credits", "credits=drop", "messages", "unmatched", ["before 0 4096", "recv nothing", "after nothing"]),
    ("port_frames", "", "objects", "budget 65536 1 4095", ["sends 255 ENOMEM"]),
    ("port_frames", "", "objects", "budget 65536 2 4095", ["sends 255 ENOMEM"]),
    ("port_frames", "port_frames=100", "objects", "budget 65536 2 4095", ["sends 6 ENOMEM"]),
    ("port_frames", "port_frames=off", "objects", "budget 65536 2 4095", ["sends 510 ENOMEM"]),
    ("queue_frames", "", "objects", "create uc 4095 1 0", ["depth 4095 4095"]),
    ("queue_frames", "", "objects", "create uc 4096 1 0", ["create EINVAL"]),
    ("queue_frames", "queue_frames=off", "objects", "create uc 8000 1 0", ["depth 8000 8000"]),
    ("queue_frames", "", "objects", "budget 8192 1 1024", ["sends 512 ENOMEM"]),
    ("depth", "depth=64", "objects", "create uc 4095 1 0", ["depth 64 64"]),
    ("depth", "depth=64", "objects", "budget 8192 1 4095", ["sends 32 ENOMEM"]),
    ("recv_depth", "", "objects", "receives 65536 4095 rts", ["receives 63 ENOMEM"]),
    ("recv_depth", "recv_depth=32", "objects", "receives 4096 4095 rts", ["receives 32 ENOMEM"]),
    ("recv_depth", "recv_depth=off", "objects", "receives 65536 4095 rts", ["receives 255 ENOMEM"]),
    ("max_qp", "", "objects", "make qp 40 2", ["made 10 EBUSY"]),
    ("max_qp", "max_qp=3", "objects", "make qp 40 2", ["made 3 EBUSY"]),
    ("max_qp", "max_qp=off", "objects", "make qp 40 2", ["made 40 0"]),
    ("max_qp_says", "", "objects", "limits",
     ["max_qp 11 max_pd 11 max_cq 11 max_mr 100 max_sge 1 max_mr_size 16384000"]),
    ("max_qp_says", "max_qp_says=10,max_mr_size=20000", "objects", "limits",
     ["max_qp 10 max_pd 11 max_cq 11 max_mr 100 max_sge 1 max_mr_size 20000"]),
    ("max_qp_says", "max_qp=3", "objects", "limits",
     ["max_qp 3 max_pd 11 max_cq 11 max_mr 100 max_sge 1 max_mr_size 16384000"]),
    ("max_pd", "", "objects", "make pd 40 1", ["made 10 ENOMEM"]),  # beside the one of its context
    ("max_pd", "", "objects", "make pd 40 2", ["made 9 ENOMEM"]),
    ("max_pd", "max_pd=off", "objects", "make pd 40 2", ["made 40 0"]),
    ("max_cq", "", "objects", "make cq 40 2", ["made 9 ENOMEM"]),
    ("max_cq", "max_cq=off", "objects", "make cq 40 2", ["made 40 0"]),
    ("max_mr", "", "objects", "make mr 150 2", ["made 100 ENOMEM"]),
    ("max_mr", "max_mr=off", "objects", "make mr 150 2", ["made 150 0"]),
    ("max_mr_size", "", "objects", "region 16384000 0 1", ["region 0"]),
    ("max_mr_size", "", "objects", "region 16384001 0 1", ["region ENOMEM"]),
    ("max_mr_size", "max_mr_size=off", "objects", "region 16384001 0 1", ["region 0"]),
    ("max_msg", "", "objects", "budget 16773121 1 4095", ["sends 0 EINVAL"]),
    ("max_msg", "max_msg=off", "objects", "budget 16773121 1 4095", ["sends 0 ENOMEM"]),  # now too many frames
    ("max_msg", "max_msg=4096", "objects", "budget 4097 1 4095", ["sends 0 EINVAL"]),
    ("page", "", "objects", "region 16384 4096 1", ["region EINVAL"]),
    ("page", "page=4096", "objects", "region 16384 4096 1", ["region 0"]),
    ("page", "page=off", "objects", "region 100 1 1", ["region 0"]),
    ("early_recv", "", "objects", "receives 4096 16 init", ["receives 0 EINVAL"]),
    ("early_recv", "", "objects", "receives 4096 16 rtr", ["receives 0 EINVAL"]),
    ("early_recv", "", "objects", "receives 4096 16 rts", ["receives 16 ENOMEM"]),
    ("early_recv", "early_recv=accept", "objects", "receives 4096 16 init", ["receives 16 ENOMEM"]),
    ("qp_types", "", "objects", "create rc 10 1 0", ["create EOPNOTSUPP"]),
    ("qp_types", "qp_types=any", "objects", "create rc 10 1 0", ["depth 10 10"]),
    ("opcodes", "", "messages", "opcode imm", ["post EOPNOTSUPP"]),
    ("opcodes", "", "messages", "opcode write", ["post EOPNOTSUPP"]),
    ("opcodes", "opcodes=any", "messages", "opcode imm", ["post 0", "recv 0 imm 77"]),
    ("opcodes", "opcodes=any", "messages", "opcode write", ["post EOPNOTSUPP"]),
    ("max_sge", "", "objects", "create uc 10 2 0", ["create EINVAL"]),
    ("max_sge", "max_sge=2", "objects", "create uc 10 2 0", ["depth 10 10"]),
    ("inline", "", "objects", "create uc 10 1 32", ["create EINVAL"]),
    ("inline", "inline=32", "objects", "create uc 10 1 32", ["depth 10 10"]),
    ("inline", "inline=32,max_sge=2", "messages", "pieces",
     ["recv 0 12", "recv 0 7", "send nothing", "data firstsecond inline"]),
    ("mr_flags", "", "objects", "region 16384 0 1", ["region 0"]),
    ("mr_flags", "", "objects", "region 16384 0 7", ["region 0"]),
    ("mr_flags", "mr_flags=local", "objects", "region 16384 0 1", ["region 0"]),
    ("mr_flags", "mr_flags=local", "objects", "region 16384 0 7", ["region EINVAL"]),
    ("mr_flags", "mr_flags=all", "objects", "region 16384 0 1", ["region EINVAL"]),
    ("mr_flags", "mr_flags=all", "objects", "region 16384 0 7", ["region 0"]),
    ("init_access", "", "objects", "connect -1 4096 7 1 peer", ["init 0", "rtr 0", WORKS]),
    ("init_access", "init_access=zero", "objects", "connect -1 4096 7 1 peer", ["init EINVAL", "rtr EINVAL", WORKS]),
    ("init_access", "init_access=zero", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("init_access", "init_access=all", "objects", "connect -1 4096 0 1 peer", ["init EINVAL", "rtr EINVAL", WORKS]),
    ("init_access", "init_access=all", "objects", "connect -1 4096 7 1 peer", ["init 0", "rtr 0", WORKS]),
    ("mtu", "", "objects", "connect -1 1024 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("mtu", "mtu=1024", "objects", "connect -1 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("mtu", "mtu=1024", "objects", "connect -1 1024 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("mtu", "mtu=4096", "objects", "connect -1 1024 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "", "objects", "connect 0 4096 0 1 peer", ["init 0", "rtr ETIMEDOUT", WORKS]),
    ("rtr_gid", "", "objects", "connect 2 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "", "objects", "connect 3 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),  # no such entry
    ("rtr_gid", "", "objects", "connect -1 4096 0 1 wrong", ["init 0", "rtr ETIMEDOUT", WORKS]),
    ("rtr_gid", "", "objects", "connect -1 4096 0 1 reset", ["init 0", "rtr ETIMEDOUT", WORKS]),
    ("rtr_gid", "", "objects", "connect -1 4096 0 1 self", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "gids=fe80", "objects", "connect 1 4096 0 1 fe80", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "gids=fe80,rtr_gid=any", "objects", "connect 1 4096 0 1 fe80", ["init 0", "rtr 0", WORKS]),
    ("rtr_gid", "gids=ipv4_at_2", "objects", "connect 1 4096 0 1 peer", ["init 0", "rtr EINVAL", WORKS]),
    ("rtr_gid", "gids=ipv4_at_2", "objects", "connect 2 4096 0 1 peer", ["init 0", "rtr 0", WORKS]),
    ("late_mr", "", "messages", "late", ["send 0 4096", "recv 4 4096"]),
    ("late_mr", "late_mr=mapped", "messages", "late", ["send 0 4096", "recv 0 4096"]),
    ("alias", "", "messages", "alias", ["recv 0 32768", "below 77 77 above 00 00"]),
    ("alias", "alias=off", "messages", "alias", ["recv 0 32768", "below 77 77 above 77 77"]),
    ("panic", "panic=off", "messages", "dereg early", ["dereg EBUSY", "ended"]),
    ("panic", "", "messages", "dereg late", ["ended"]),
    ("wedge", "", "objects", "connect 2 4096 0 2 peer", ["init 0", "rtr EINVAL", "rtr EINVAL", WORKS]),
    ("wedge", "", "objects", "connect 2 4096 0 4 peer",
     ["init 0", "rtr EINVAL", "rtr EINVAL", "rtr EINVAL", "rtr EIO", WEDGED]),
    ("wedge", "wedge=off", "objects", "connect 2 4096 0 5 peer", ["init 0", *["rtr EINVAL"] * 5, WORKS]),
    ("ring", "ring=4096", "messages", "exchange 262144 262144",
     ["send 0 262144", "recv 0 262144", "data intact", "post 0 0", "send 0 262144", "recv 0 262144"]),
    ("preset", "preset=soft_roce", "messages", "unmatched", ["before 0 4096", "recv nothing", "after nothing"]),
    ("preset", "preset=soft_roce,credits=hold", "messages", "unmatched",
     ["before nothing", "recv 0 4096", "after 0 4096"]),
    ("preset", "preset=soft_roce", "objects", "make qp 40 2", ["made 40 0"]),
]  # fmt: skip

ADDRESSES = [
    ("apple", "fe80 ipv4/169.254.1.1 fe80"),
    ("ipv4_at_2", "fe80 fe80 ipv4/169.254.1.1"),
    ("fe80", "fe80 fe80"),
    ("uuid", "uuid fe80 ipv4/169.254.1.1"),
    ("several", "fe80 ipv4/10.99.0.1 zero ipv4/169.254.1.1"),
]


@pytest.mark.parametrize(
    ("rules", "program", "question", "answer"),
    [row[1:] for row in RULES],
    ids=[f"{row[0]}: {row[1] or 'as Apple'}: {row[3]}" for row in RULES],
)
def test_a_rule_acts_as_it_is_set(
    ask: Asker, rules: str, program: str, question: str, answer: list[str]
) -> None:
    """Each rule of Apple's acts when nothing is said, and acts otherwise when it is set otherwise."""
    code, lines, err = ask(program, question, rules)

    assert (code, lines) == (0, answer), err


@pytest.mark.parametrize(("layout", "table"), ADDRESSES)
def test_the_address_table_has_the_layout_asked_for(ask: Asker, layout: str, table: str) -> None:
    """Each layout of GIDs that was seen on Macs can be had, the IPv4 address always the cable's own."""
    _, lines, err = ask("objects", "devices", f"gids={layout}")

    assert f"device rdma_en2 ACTIVE lid 1 gids {table}" in lines, err


def test_a_region_taken_away_too_early_is_a_panic(ask: Asker) -> None:
    """Deregistering memory that a work request may still touch ends the process and says why."""
    code, lines, err = ask("messages", "dereg early")

    assert code == 134
    assert lines == []
    assert "kernel panic" in err


def test_a_device_without_a_cable_is_down(ask: Asker) -> None:
    """An uncabled device is listed, and its port is down; an address may be given by hand."""
    cabling = "cables=m:rdma_en2/10.0.1.1-m-2:rdma_en3/10.0.1.2; devices=m:rdma_en5"
    _, lines, err = ask("objects", "devices", cabling=cabling)

    assert lines == [
        "devices 2 list",
        "device rdma_en5 DOWN lid 2 gids fe80 ipv4/169.254.103.1 fe80",
        "device rdma_en2 ACTIVE lid 1 gids fe80 ipv4/10.0.1.1 fe80",
    ], err


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("keys", ["recv 4 128", "recv 4 128"]),
        ("psn", ["send 0 4096", "recv nothing"]),
        ("order", ["pd EBUSY cq EBUSY context EBUSY"]),
        ("idle", ["recv 0 4096", "send 0 4096"]),
        ("overrun", ["poll 2 -1"]),
        ("again", ["flushed 5 0", "recv 0 64", "calls 4"]),
    ],
)
def test_what_any_verbs_provider_does(ask: Asker, question: str, answer: list[str]) -> None:
    """A wrong key is a protection error, a wrong PSN a lost message, destruction goes in order, a held send goes out
    without its sender's poll, and a queue pair can be reset and used again."""
    code, lines, err = ask("objects" if question == "order" else "messages", question)

    assert (code, lines) == (0, answer), err


def test_fields_may_stand_in_a_file(ask: Asker, tmp_path: Path) -> None:
    """The cabling of all nodes in one file, the node's own name beside it."""
    (tmp_path / "cabling").write_text("# two cables\ncables=m:rdma_en2-n:rdma_en2, m:rdma_en3-n:rdma_en3\n")
    _, lines, err = ask("objects", "devices", cabling=f"file={tmp_path}/cabling")

    assert [line.split()[1] for line in lines[1:]] == ["rdma_en3", "rdma_en2"], err


def test_no_rule_goes_untested() -> None:
    """Every name of the table in mock_rules.c is set in some test of this room."""
    rules = re.findall(r'\{(?:ROW\((\w+)\)|"(\w+)", offsetof)', (MOCK / "mock_rules.c").read_text())
    names = [first or second for first, second in rules]
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    assert len(names) == 30
    assert [name for name in names if f"{name}=" not in tests] == []
