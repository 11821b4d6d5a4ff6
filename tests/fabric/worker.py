"""A rank of the fabric tests: runs code that it is sent, and answers with the value of ``result``.

Frames both ways: 8 bytes of length, then a pickle. Also holds what tests and ranks must make alike.
"""

from __future__ import annotations

import builtins
import pickle
import struct
import sys
import traceback
from typing import Any, BinaryIO

import numpy as np

from tbkit.errors import TbkitError

KINDS = {
    "float16": np.uint16,
    "bfloat16": np.uint16,
    "float32": np.uint32,
    "float64": np.uint64,
    "int32": np.uint32,
}
SPECIAL = {  # bit patterns: zeros, infinities, NaNs with payloads and signs, the smallest, the largest
    "float16": [0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0xFD55, 1, 0x8001, 0x7BFF, 0xFBFF, 0x0400],
    "bfloat16": [
        0,
        0x8000,
        0x7F80,
        0xFF80,
        0x7FC0,
        0xFFC1,
        0x7F81,
        0xFFAA,
        1,
        0x8001,
        0x7F7F,
        0xFF7F,
        0x0080,
    ],
    "float32": [
        0,
        1 << 31,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC00001,
        0x7F800001,
        1,
        0x80000001,
        0x7F7FFFFF,
    ],
    "float64": [0, 1 << 63, 0x7FF << 52, 0xFFF << 52, (0x7FF << 52) + 5, (0xFFF << 52) + (1 << 51) + 3, 1],
    "int32": [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
}


def make_bits(kind: str, count: int, seed: int, rank: int) -> np.ndarray:
    """A rank's input as bit patterns: numbers of like size, and a fifth of special ones."""
    rng = np.random.default_rng([seed, rank])
    word = KINDS[kind]
    if kind == "int32":
        bits = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    elif kind == "bfloat16":
        bits = (rng.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        bits = rng.standard_normal(count).astype(kind).view(word)
    special = rng.choice(np.array(SPECIAL[kind], dtype=word), count)
    return np.where(rng.random(count) < 0.2, special, bits).astype(word)


def as_array(kind: str, bits: np.ndarray) -> np.ndarray:
    """The array that is given to the fabric: bfloat16 stays uint16."""
    return bits if kind == "bfloat16" else bits.view(kind)


def _read(stream: BinaryIO) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise SystemExit
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def _write(stream: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _answer(namespace: dict[str, Any], code: str, values: dict[str, Any]) -> tuple[str, Any]:
    hidden = set(values) & set(vars(builtins))
    assert not hidden, f"a value would hide the builtin {', '.join(hidden)} from all later code"
    namespace.update(values, result=None)
    try:
        exec(code, namespace)
    except TbkitError as error:
        return "error", error.to_dict()
    except Exception:
        return "failed", traceback.format_exc()
    return "ok", namespace["result"]


def main() -> None:
    """Serve until end of file."""
    output = sys.stdout.buffer
    sys.stdout = sys.stderr
    namespace: dict[str, Any] = {"np": np, "make_bits": make_bits, "as_array": as_array, "groups": {}}
    while True:
        code, values = _read(sys.stdin.buffer)
        _write(output, _answer(namespace, code, values))


if __name__ == "__main__":
    main()
