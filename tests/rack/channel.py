"""The wire between the host and a node: frames over one virtio serial port, many programs at once.

Both sides import this: the host's ``remote.py`` and the node's ``agent.py``, which runs before any site package is
there, so standard library only. A frame is ``<number u32, kind u8, length u32>`` and its payload; ``number`` names a
program. An empty payload of STDIN, STDOUT or STDERR is that stream's end.
"""

from __future__ import annotations

import os
import selectors
import struct
from collections.abc import Callable, Iterator

HEADER = struct.Struct("<IBI")
READY, START, STDIN, STDOUT, STDERR, SIGNAL, EXIT = range(7)
CHUNK_BYTES = 1 << 16
FULL_BYTES = 1 << 20

Frame = tuple[int, int, bytes]


def frame(number: int, kind: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return HEADER.pack(number, kind, len(payload)) + payload


class Frames:
    """Cuts a stream of bytes, however it arrives in pieces, into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that ``data`` completes."""
        self._data += data
        while len(self._data) >= HEADER.size:
            number, kind, length = HEADER.unpack_from(self._data)
            end = HEADER.size + length
            if len(self._data) < end:
                return
            payload = bytes(self._data[HEADER.size : end])
            del self._data[:end]
            yield number, kind, payload


class Pump:
    """Reads and writes many descriptors in one thread and never blocks on one of them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._readers: dict[int, tuple[Callable[[bytes], None], int | None]] = {}
        self._waiting: dict[int, bytearray] = {}
        self._ending: set[int] = set()

    def read(self, descriptor: int, consume: Callable[[bytes], None], into: int | None = None) -> None:
        """Give what arrives to ``consume``, b"" at the end; rest while ``into`` has over 1 MiB to write."""
        os.set_blocking(descriptor, False)
        self._readers[descriptor] = consume, into
        self._watch(descriptor)

    def write(self, descriptor: int, data: bytes) -> None:
        """Write ``data`` when the descriptor takes it."""
        os.set_blocking(descriptor, False)
        self._waiting.setdefault(descriptor, bytearray()).extend(data)
        self._watch(descriptor)

    def end(self, descriptor: int) -> None:
        """Close the descriptor once all that waits for it is written."""
        self._ending.add(descriptor)
        if not self._waiting.get(descriptor):
            self._close(descriptor)

    def turn(self, timeout_s: float | None = None) -> None:
        """Wait for the next thing that can be done, and do all that can be done now."""
        for descriptor in self._readers:
            self._watch(descriptor)
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_WRITE and key.fd in self._waiting:
                self._write_some(key.fd)
            if events & selectors.EVENT_READ and key.fd in self._readers:
                self._read_some(key.fd)

    def close(self) -> None:
        """Close every descriptor that was given."""
        for descriptor in {*self._readers, *self._waiting}:
            self._close(descriptor)
        self._selector.close()

    def _wanted(self, descriptor: int) -> int:
        events = selectors.EVENT_WRITE if self._waiting.get(descriptor) else 0
        _, into = self._readers.get(descriptor, (None, None))
        full = into is not None and len(self._waiting.get(into, b"")) > FULL_BYTES
        return events | (selectors.EVENT_READ if descriptor in self._readers and not full else 0)

    def _watch(self, descriptor: int) -> None:
        wanted, known = self._wanted(descriptor), self._selector.get_map().get(descriptor)
        if known is None and wanted:
            self._selector.register(descriptor, wanted)
        elif known is not None and not wanted:
            self._selector.unregister(descriptor)
        elif known is not None and known.events != wanted:
            self._selector.modify(descriptor, wanted)

    def _read_some(self, descriptor: int) -> None:
        consume, _ = self._readers[descriptor]
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # the other side is gone: that is an end
            data = b""
        if not data:
            del self._readers[descriptor]
            self._watch(descriptor)
        consume(data)

    def _write_some(self, descriptor: int) -> None:
        waiting = self._waiting[descriptor]
        try:
            del waiting[: os.write(descriptor, waiting[:CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            waiting.clear()
        self._watch(descriptor)
        if not waiting and descriptor in self._ending:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._readers.pop(descriptor, None)
        self._waiting.pop(descriptor, None)
        self._ending.discard(descriptor)
        self._watch(descriptor)
        os.close(descriptor)
