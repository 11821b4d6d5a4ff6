"""What of the rack needs no node: frames, the pump, perftest's output, the order of kernel modules."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rack import images, perftest
from tests.rack.channel import Frames, Pump, frame

LATENCY = """\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      1000          16.52          2013.97      17.12              19.80       63.21     24.10       2013.97
---------------------------------------------------------------------------------------
"""  # noqa: E501
BANDWIDTH = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      200              0.00               30.50              0.000488
"""


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 6), st.binary(max_size=300))), st.data())
def test_frames_survive_any_cutting(sent, data):
    """However the stream is cut into pieces, the same frames come out."""
    stream = b"".join(frame(*each) for each in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    frames = Frames()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert [each for piece in pieces for each in frames.feed(piece)] == sent


def test_a_pump_does_not_block_on_a_full_pipe():
    """What does not fit waits; it is whole when read, and the end comes after it."""
    reader, writer = os.pipe()
    pump, sent, got = Pump(), os.urandom(1 << 20), bytearray()
    pump.write(writer, sent)
    pump.end(writer)
    pump.turn(0)
    pump.read(reader, got.extend)
    for _ in range(200):
        pump.turn(0)

    assert bytes(got) == sent
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(writer)
    os.close(reader)


def test_perftest_lines_become_numbers_with_units():
    """Microseconds stay, perftest's MB of 2**20 bytes become bytes."""
    latency, bandwidth = perftest.latency(LATENCY), perftest.bandwidth(BANDWIDTH)

    assert latency == (64, 1000, 16.52, 2013.97, 17.12, 19.80)
    assert bandwidth == (65536, 200, 0.0, 30.5 * 2**20)


def test_output_without_a_result_is_refused():
    """A run that failed is not a figure."""
    with pytest.raises(ValueError, match="0 result lines"):
        perftest.latency("Couldn't connect to 10.1.2.1:18515\n")


def test_a_module_comes_after_what_it_needs(tmp_path):
    """Dependencies of dependencies too; what is built into the kernel is passed over."""
    needs = {"virtio_net": "net_failover", "net_failover": "failover,built-in", "failover": "", "overlay": ""}
    modules = {}
    for name, depends in needs.items():
        modules[name] = tmp_path / f"{name}.ko"
        modules[name].write_bytes(b"ELF\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0")

    assert images.load_order(modules) == ["failover", "net_failover", "virtio_net", "overlay"]


def test_a_signature_is_cut_off(tmp_path):
    """The module is as it was before it was signed."""
    module = tmp_path / "a.ko"
    mark = b"~Module signature appended~\n"
    module.write_bytes(b"module\0" + b"S" * 300 + bytes(8) + (300).to_bytes(4, "big") + mark)

    assert images.unsigned(module) == b"module\0"
