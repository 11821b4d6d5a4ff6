"""Frames between engine and rank: what goes in comes out, what is broken is an error, nothing waits for ever."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tbkit.errors import DeadlinePassed
from tbkit.rank import wire

Pair = tuple[socket.socket, socket.socket]
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    SCALARS | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(["<f2", "<f4", "<f8", "<i4", "<u2", "|u1", "|b1"])


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@given(st.dictionaries(st.text(), VALUES, max_size=4))
@settings(deadline=2000, max_examples=60)
def test_a_frame_arrives_as_it_was_sent(pair: Pair, message: dict[str, Any]) -> None:
    """Any plain message makes the round trip unchanged."""
    wire.send(pair[0], message)

    assert wire.receive(pair[1], deadline_s=5.0) == message


@given(st.data())
@settings(deadline=2000, max_examples=40)
def test_an_array_arrives_with_type_shape_and_bytes(pair: Pair, data: st.DataObject) -> None:
    """numpy arrays of any shape, scalars and empty ones too, arrive writable and bit for bit."""
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    sent = data.draw(arrays.arrays(np.dtype(data.draw(TYPES)), shape))

    wire.send(pair[0], {"x": sent})
    got = wire.receive(pair[1], deadline_s=5.0)["x"]

    assert (got.dtype, got.shape, got.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())
    assert got.flags.writeable


def test_a_strided_array_and_a_numpy_number_travel(pair: Pair) -> None:
    """A view is sent as the values it shows, a numpy scalar as a plain number."""
    wire.send(pair[0], {"x": np.arange(12.0).reshape(3, 4)[:, ::2], "n": np.float32(1.5)})
    got = wire.receive(pair[1], deadline_s=5.0)

    assert got["n"] == 1.5 and got["x"].tolist() == [[0, 2], [4, 6], [8, 10]]


def test_what_cannot_travel_is_refused_before_a_byte_is_sent(pair: Pair) -> None:
    """An object of no plain type is a TypeError, and the next frame is whole."""
    with pytest.raises(TypeError, match="object does not travel"):
        wire.send(pair[0], {"x": object()})
    wire.send(pair[0], {"x": 1})

    assert wire.receive(pair[1], deadline_s=5.0) == {"x": 1}


@pytest.mark.parametrize("kept", [0, 2, 4, 7])
def test_a_frame_cut_short_is_the_end(kept: int) -> None:
    """A peer that goes away in the middle of a frame, header or body, is an EOFError."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall((struct.pack("<I", 20) + b"\0" * 20)[:kept])
        with pytest.raises(EOFError):
            wire.receive(theirs, deadline_s=5.0)


def test_an_absurd_length_is_refused() -> None:
    """A header beyond the limit is no frame of ours, whatever follows; nothing is allocated for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<I", 0xFFFFFFFF))
        with pytest.raises(EOFError, match="4294967295"):
            wire.receive(theirs, deadline_s=5.0)


def test_a_frame_larger_than_the_socket_arrives_in_pieces() -> None:
    """4 MiB go through a socket that holds far less at once."""
    ours, theirs = socket.socketpair()
    sent = np.arange(1 << 20, dtype=np.float32)
    with ours, theirs:
        writer = threading.Thread(target=wire.send, args=(ours, {"x": sent}))
        writer.start()
        got = wire.receive(theirs, deadline_s=20.0)["x"]
        writer.join(10.0)

    assert np.array_equal(got, sent)


@pytest.mark.alone
@pytest.mark.parametrize("begun", [b"", b"\x05\0\0\0ab"])
def test_a_silent_peer_ends_at_the_deadline(begun: bytes) -> None:
    """No frame, or half of one: DeadlinePassed on time, not later."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(begun)
        start = time.monotonic()
        with pytest.raises(DeadlinePassed):
            wire.receive(theirs, deadline_s=0.2)

        assert 0.15 < time.monotonic() - start < 1.5
