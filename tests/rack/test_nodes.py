"""The rack is what it says: devices as a Mac has them, verbs that pass over every cable, faults that befall it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from itertools import combinations, permutations

import pytest

from tests.rack import perftest
from tests.rack.node import LOGS, Node
from tests.rack.rack import Rack

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(240)]

RUN_S = 60.0
IMPORT_S = 150.0  # 14 to 58 s where others had both cores
SILENT_S = 5
CABLES = list(combinations(range(1, 5), 2))


def answers(rack: Rack, node: int, peer: int) -> bool:
    """Whether a ping over the cable comes back within SILENT_S."""
    command = ["ping", "-c", "1", "-w", str(SILENT_S), rack.address(peer, node)]
    return "1 received" in rack.node(node).run(command, RUN_S).stdout


def state(node: Node, device: str) -> str:
    return node.run(["cat", f"/sys/class/infiniband/{device}/ports/1/state"], RUN_S).stdout.strip()


def is_state(node: Node, device: str, wanted: str) -> bool:
    """Whether the port comes to the state within RUN_S."""
    end = time.monotonic() + RUN_S
    while time.monotonic() < end:
        if state(node, device).endswith(wanted):
            return True
    return False


def test_every_node_has_a_device_for_each_peer(rack):
    """An active port with path MTU 4096 and the IPv4-mapped GID of its cable, as ibv_devinfo prints it."""
    for number, peer in permutations(rack.numbers, 2):
        said = rack.node(number).run(["ibv_devinfo", "-v", "-d", rack.device(number, peer)], RUN_S).stdout

        assert re.search(r"state:\s+PORT_ACTIVE", said), said
        assert re.search(r"active_mtu:\s+4096", said), said
        assert f"::ffff:{rack.address(number, peer)}" in said


def test_a_node_has_no_other_device(rack):
    """One for each peer: the management network has none."""
    for number in rack.numbers:
        listed = rack.node(number).run(["ls", "/sys/class/infiniband"], RUN_S).stdout.split()

        assert listed == [rack.device(number, peer) for peer in rack.numbers if peer != number]


@pytest.mark.parametrize(("low", "high"), CABLES)
def test_uc_messages_pass_over_every_cable(rack, low, high):
    """ib_send_lat over UC ends with times in order."""
    found = perftest.send_lat(rack, low, high, message_bytes=64, iterations=50)

    assert (found.message_bytes, found.iterations) == (64, 50)
    assert 0 < found.min_us <= found.typical_us <= found.max_us


def test_a_stream_of_64_kib_arrives_whole(rack2):
    """ib_send_bw over UC ends and its server, the receiver, has counted it."""
    found = perftest.send_bw(rack2, 1, 2, message_bytes=1 << 16, iterations=200)

    assert (found.message_bytes, found.iterations) == (1 << 16, 200)
    assert found.average_bytes_per_s > 0


def test_both_ends_may_be_one_node(rack):
    """A device reaches itself."""
    found = perftest.send_lat(rack, 3, 3, message_bytes=64, iterations=20, inside=4)

    assert (found.message_bytes, found.iterations) == (64, 20)
    assert found.typical_us > 0


def test_a_program_keeps_its_streams(rack2):
    """stdin and stdout of a program on a node stay connected, unbuffered; its end is seen, and kill ends it."""
    loop = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)\nprint('end')"
    program = rack2.node(1).start([sys.executable, "-c", loop])
    for word in (b"abc\n", b"tbkit\n"):
        program.stdin.write(word)
        assert program.stdout.read(100) == word.strip()[::-1] + b"\n"
    program.stdin.close()
    assert program.stdout.read(100) == b"end\n"
    assert program.wait(RUN_S) == 0
    sleeper = rack2.node(1).start(["sleep", "600"])
    sleeper.kill()
    assert sleeper.wait(RUN_S) == -9


def test_large_outputs_and_inputs_pass(rack2):
    """16 MiB go through a program on a node and come back equal, while another one answers."""
    data = bytes(range(256)) * (1 << 14)
    done = rack2.node(2).run("sha256sum; head -c 4000000 /dev/zero | wc -c", RUN_S, data=data)

    assert (
        done.stdout.split()[0]
        == subprocess.run(["sha256sum"], input=data, capture_output=True).stdout.decode()[:64]
    )
    assert done.stdout.split()[-1] == "4000000"


def test_the_checkout_is_on_every_node(rack2):
    """The host's Python and its packages, at the same paths."""
    program = "import numpy, tbkit; print(tbkit.__file__)"
    here = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout

    assert rack2.node(2).run([sys.executable, "-c", program], IMPORT_S).stdout == here != ""


def test_a_changed_file_is_read_anew_when_told(rack2):
    """What the host has written since a node read it is there after forget_files."""
    file = LOGS / "changing.txt"
    file.write_text("old")
    assert rack2.node(1).run(["cat", str(file)], RUN_S).stdout == "old"
    file.write_text("newer")
    rack2.node(1).forget_files()
    assert rack2.node(1).run(["cat", str(file)], RUN_S).stdout == "newer"
    file.unlink()


def test_a_command_that_cannot_start_says_so(rack2):
    """127 and the reason, as a shell has it; a command past its deadline is killed and named with its node."""
    done = rack2.node(1).run(["no-such-program"], RUN_S)
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
    with pytest.raises(subprocess.TimeoutExpired, match="node 1: sleep 600"):
        rack2.node(1).run(["sleep", "600"], 1.0)


def test_ssh_answers(rack2):
    """A node is also a machine that is reached over ssh."""
    done = subprocess.run([*rack2.node(1).ssh(), "hostname"], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr, done.returncode) == ("node1\n", "", 0)


def test_a_pulled_cable_is_silent_and_comes_back(rack):
    """Both ports go down and no packet passes; the others go on; plugged in again it is as before."""
    rack.pull(1, 2)
    assert is_state(rack.node(1), rack.device(1, 2), "DOWN")
    assert is_state(rack.node(2), rack.device(2, 1), "DOWN")
    assert not answers(rack, 1, 2)
    assert answers(rack, 1, 3)
    rack.plug(1, 2)
    assert is_state(rack.node(1), rack.device(1, 2), "ACTIVE")
    assert answers(rack, 1, 2)
    assert perftest.send_lat(rack, 1, 2, message_bytes=64, iterations=20).typical_us > 0


def test_a_losing_cable_loses(rack2):
    """Of 200 packets over a cable that loses half of them in each direction about a quarter come back."""
    rack2.lose(1, 2, percent=50)
    said = rack2.node(1).run(f"ping -q -i 0.01 -c 200 {rack2.address(2, 1)}", RUN_S).stdout
    rack2.lose(1, 2, percent=0)
    back = re.search(r"(\d+) received", said)

    assert back is not None
    assert 20 <= int(back.group(1)) <= 80
    assert answers(rack2, 1, 2)


def test_a_frozen_node_says_nothing_and_goes_on(rack):
    """It answers nobody while frozen, keeps what it ran, and the others do not notice."""
    counter = rack.node(3).start(["/bin/bash", "-c", "read; echo still here"])
    rack.freeze(3)
    assert not answers(rack, 1, 3)
    assert answers(rack, 1, 2)
    rack.thaw(3)
    counter.stdin.write(b"\n")
    assert counter.stdout.read(100) == b"still here\n"
    assert answers(rack, 1, 3)


def test_a_killed_node_is_gone_and_is_booted_again(rack):
    """Its programs end with -9, its peers go on, and ``restore`` gives a whole rack."""
    program = rack.node(4).start(["sleep", "600"])
    pid = rack.node(4).pid
    rack.kill(4)
    assert program.wait(RUN_S) == -9
    assert program.stdout.read(1) == b""
    assert subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode == 1
    assert not answers(rack, 1, 4)
    assert answers(rack, 1, 2)
    rack.restore()
    assert perftest.send_lat(rack, 1, 4, message_bytes=64, iterations=20).typical_us > 0
    assert perftest.send_lat(rack, 4, 3, message_bytes=64, iterations=20).typical_us > 0
