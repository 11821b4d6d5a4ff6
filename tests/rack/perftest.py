"""The field's own benchmark between two nodes, or inside one: ``ib_send_lat`` and ``ib_send_bw`` over UC.

Its output becomes numbers with units. A node has one virtual processor, so these are no performance figures of
anything: they are what a program of ours on the same nodes in the same run is compared with.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from typing import NamedTuple

from tests.rack.rack import Rack
from tests.rack.remote import Process

PORT = 18515
MIB = 1 << 20  # perftest's "MB/sec" counts in 2**20 bytes
LISTEN_S = 30.0
RUN_S = 60.0
_LISTENING = "until grep -qE ':{port:04X} 0+:0000 0A ' /proc/net/tcp*; do sleep 0.1; done"


class Latency(NamedTuple):
    """One line of ``ib_send_lat``: half of a round trip, in microseconds."""

    message_bytes: int
    iterations: int
    min_us: float
    max_us: float
    typical_us: float
    average_us: float


class Bandwidth(NamedTuple):
    """One line of ``ib_send_bw`` as its server, the receiver, prints it, in bytes a second."""

    message_bytes: int
    iterations: int
    peak_bytes_per_s: float
    average_bytes_per_s: float


def send_lat(
    rack: Rack,
    server: int,
    client: int,
    message_bytes: int,
    iterations: int,
    inside: int | None = None,
    events: bool = False,
) -> Latency:
    """Half round trip between two nodes; both ends inside one where ``server == client``.

    ``inside`` then names the peer whose device is used. Two ends that spin on one processor measure its time slices:
    a rack with two processors a node, or ``events`` (each end sleeps until a message comes) gives the message's time.
    RuntimeError with both outputs when it fails.
    """
    options = ["-s", str(message_bytes), "-n", str(iterations), *(["-e"] if events else [])]
    _, client_said = _pair(rack, "ib_send_lat", server, client, options, inside)
    return latency(client_said)


def send_bw(
    rack: Rack,
    server: int,
    client: int,
    message_bytes: int,
    iterations: int,
    inside: int | None = None,
    events: bool = False,
) -> Bandwidth:
    """One-way streaming as the server counts it: the client's figure leaves out what is still on the way."""
    options = ["-s", str(message_bytes), "-n", str(iterations), *(["-e"] if events else [])]
    server_said, _ = _pair(rack, "ib_send_bw", server, client, options, inside)
    return bandwidth(server_said)


def latency(output: str) -> Latency:
    """The one result line of ``ib_send_lat``."""
    size, count, least, most, typical, average, *_ = _result(output)
    return Latency(int(size), int(count), least, most, typical, average)


def bandwidth(output: str) -> Bandwidth:
    """The one result line of ``ib_send_bw``."""
    size, count, peak, average, *_ = _result(output)
    return Bandwidth(int(size), int(count), peak * MIB, average * MIB)


def _result(output: str) -> list[float]:
    lines = re.findall(r"^ \d+ .*$", output, re.MULTILINE)
    if len(lines) != 1:
        raise ValueError(f"perftest's output has {len(lines)} result lines, one was expected:\n{output}")
    return [float(word) for word in lines[0].split()]


def _pair(
    rack: Rack, program: str, server: int, client: int, options: Sequence[str], inside: int | None
) -> tuple[str, str]:
    """Run server and client to their ends; what each said."""
    server_peer = client if inside is None else inside
    client_peer = server if inside is None else inside
    near = _start(rack, program, server, server_peer, options)
    try:
        rack.node(server).run(_LISTENING.format(port=PORT), LISTEN_S).check_returncode()
        far = _start(rack, program, client, client_peer, [*options, rack.address(server, server_peer)])
        try:
            said = [_end(each, time.monotonic() + RUN_S) for each in (far, near)]
        finally:
            far.kill()
            far.close()
    finally:
        near.kill()
        near.close()
    return said[1], said[0]


def _start(rack: Rack, program: str, node: int, peer: int, options: Sequence[str]) -> Process:
    device = rack.device(node, peer)
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(
        *map(int, rack.address(node, peer).split("."))
    )
    index = f"$(cd /sys/class/infiniband/{device}/ports/1/gids && grep -ls {mapped} [0-9])"
    command = [program, "-c", "UC", "-F", "-p", str(PORT), "-d", device, *options]
    return rack.node(node).start(["/bin/bash", "-c", f'exec {shlex.join(command)} -x "{index}" 2>&1'])


def _end(program: Process, deadline: float) -> str:
    out, _ = program.communicate(max(0.0, deadline - time.monotonic()))
    said = out.decode(errors="replace")
    if program.returncode:
        raise RuntimeError(f"{program.args[-1]} ended with {program.returncode}:\n{said}")
    return said
