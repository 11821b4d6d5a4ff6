"""The real model's file, and a writer of small GGUF files."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbkit.errors import InputError
from tbkit.model import fetch


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The catalogue's model; left out where it cannot be fetched, a failure with STRICT=1."""
    try:
        return fetch("smollm2-135m-instruct")
    except InputError as error:
        if os.environ.get("STRICT"):
            raise
        pytest.skip(reason=str(error))


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: Any) -> tuple[int, bytes]:
    """GGUF's type number and the value's bytes."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value)
    kind = _value(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_value(v)[1] for v in value)


def _pair(key: str, value: Any) -> bytes:
    kind, data = _value(value)
    return _text(key) + struct.pack("<I", kind) + data


def _gguf(metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, int]]) -> bytes:
    """A GGUF file; tensors map names to (shape outermost first, type, bytes)."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(_pair(k, v) for k, v in metadata.items())
    at = 0
    for name, (shape, kind, size) in tensors.items():
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", kind, at)
        at += -(-size // 32) * 32
    return head + b"\0" * (-len(head) % 32) + b"\1" * at


@pytest.fixture(scope="session")
def write_gguf() -> Callable[[dict[str, Any], dict[str, tuple[tuple[int, ...], int, int]]], bytes]:
    """The bytes of a GGUF file with this metadata and these tensors."""
    return _gguf
