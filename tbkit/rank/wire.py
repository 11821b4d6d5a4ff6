"""Frames between an engine and its rank process: a length, then msgpack, over one socketpair."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any

import msgpack
import numpy as np

from tbkit.errors import DeadlinePassed

_LENGTH = struct.Struct("<I")
_ARRAY = 1
FRAME_LIMIT_BYTES = 1 << 30


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, msgpack.packb((value.dtype.str, value.shape, value.tobytes())))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not travel between engine and rank")


def _decode(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        return msgpack.ExtType(code, data)
    dtype, shape, raw = msgpack.unpackb(data)
    return np.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Write one frame; OSError when the other end is gone."""
    body = msgpack.packb(message, default=_encode)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, deadline_s: float | None = None) -> dict[str, Any]:
    """Read one frame. EOFError when the other end is gone, DeadlinePassed after ``deadline_s`` seconds."""
    end = None if deadline_s is None else time.monotonic() + deadline_s
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, end))
    if length > FRAME_LIMIT_BYTES:
        raise EOFError(f"a frame of {length} bytes is no frame of ours")
    message: dict[str, Any] = msgpack.unpackb(_exactly(sock, length, end), ext_hook=_decode)
    return message


def _exactly(sock: socket.socket, count: int, end: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        left = None if end is None else max(0.0, end - time.monotonic())
        if not select.select([sock], [], [], left)[0]:
            raise DeadlinePassed("rank process", "answers before its deadline", "nothing")
        piece = sock.recv(min(count - len(parts), 1 << 20))
        if not piece:
            raise EOFError("the other end is closed")
        parts += piece
    return bytes(parts)
