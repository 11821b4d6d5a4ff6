"""What a rank says in an exchange, a card or an error, and exchanges over what simple programs have."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from tbkit.errors import ClusterError, FabricTimeout, InputError, TbkitError

POLL_S = 0.005
NOTE_MAX = 1 << 20


def pack(content: bytes | TbkitError) -> bytes:
    """A note for the others: a card, or an error that ends their attempt too."""
    packed: bytes = msgpack.packb(content if isinstance(content, bytes) else content.to_dict())
    return packed


def unpack(note: bytes) -> bytes | dict[str, Any]:
    """The card, or the error as plain data. Raises InputError for anything else."""
    try:
        content = msgpack.unpackb(note)
    except Exception as error:  # msgpack has no base class of its own errors
        raise InputError("note of a rank", "msgpack", f"{len(note)} bytes: {error}") from None
    if isinstance(content, bytes) or (isinstance(content, dict) and "subject" in content):
        return content
    raise InputError("note of a rank", "a card or an error", type(content).__name__)


def over_folder(
    folder: Path, rank: int, size: int, deadline_s: float = 30.0
) -> Callable[[bytes], Sequence[bytes]]:
    """An exchange over files in a folder that all ranks see. Each call is a round of its own."""
    rounds = 0

    def exchange(note: bytes) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        own = folder / f"{rounds}-{rank}"
        part = own.with_suffix(".part")
        part.write_bytes(note)
        part.replace(own)
        end = time.monotonic() + deadline_s
        return [_await_file(folder / f"{rounds}-{other}", other, end) for other in range(size)]

    return exchange


def _await_file(path: Path, rank: int, end: float) -> bytes:
    while not path.exists():
        if time.monotonic() > end:
            raise FabricTimeout(
                "exchange", "every rank writes its note", f"none of rank {rank}", absent=[rank]
            )
        time.sleep(POLL_S)
    return path.read_bytes()


def over_stdio(
    source: BinaryIO | None = None, sink: BinaryIO | None = None
) -> Callable[[bytes], Sequence[bytes]]:
    """An exchange over this program's standard input and output: one line of hexadecimal out, one in.

    Out: ``note HEX``. In: ``notes HEX HEX …``, by rank. Who started the programs does the gathering; the deadline
    is theirs: they close the input, which ends the exchange with ClusterError.
    """
    lines_in, lines_out = source or sys.stdin.buffer, sink or sys.stdout.buffer

    def exchange(note: bytes) -> list[bytes]:
        lines_out.write(b"note " + note.hex().encode() + b"\n")
        lines_out.flush()
        word, *notes = lines_in.readline(NOTE_MAX).split() or [b""]
        if word != b"notes":
            raise ClusterError("exchange", "a line of notes on standard input", word.decode() or "its end")
        return [bytes.fromhex(one.decode()) for one in notes]

    return exchange
