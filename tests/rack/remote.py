"""The host's side of a node's wire: programs on the node that look like ``subprocess.Popen``."""

from __future__ import annotations

import marshal
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.rack import channel
from tests.rack.channel import EXIT, READY, SIGNAL, START, STDERR, STDIN, STDOUT, Pump

ROOT = Path(__file__).resolve().parents[2]
KILLED_S = 5.0


class Process:
    """A program on a node. ``stdin``, ``stdout``, ``stderr`` are unbuffered binary files with a ``fileno()``.

    They may be given to ``select``; what is not read waits in the host's memory. A node that ends makes the
    streams end and gives -9 as return code.
    """

    def __init__(self, wire: Wire, number: int, argv: Sequence[str]) -> None:
        self.args = list(argv)
        self.returncode: int | None = None
        self._wire, self._number, self._ended = wire, number, threading.Event()
        self._ends: dict[int, int] = {}  # STDIN, STDOUT, STDERR: the wire's descriptors, while open
        self.stdin, self._ends[STDIN] = _pair("wb")
        self.stdout, self._ends[STDOUT] = _pair("rb")
        self.stderr, self._ends[STDERR] = _pair("rb")

    def poll(self) -> int | None:
        """The return code, or None while the program runs."""
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        """The return code; subprocess.TimeoutExpired after ``timeout_s`` seconds."""
        if not self._ended.wait(timeout_s):
            raise subprocess.TimeoutExpired(self.args, timeout_s)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the program and all that it started."""
        self._wire.send(self._number, SIGNAL, str(int(number)).encode())

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout_s: float) -> tuple[bytes, bytes]:
        """Close stdin and read both outputs to their ends; subprocess.TimeoutExpired at the deadline."""
        self.stdin.close()
        parts: dict[str, bytes] = {}
        readers = [
            threading.Thread(target=lambda s=stream, n=name: parts.__setitem__(n, _read_all(s)), daemon=True)
            for name, stream in (("out", self.stdout), ("err", self.stderr))
        ]
        end = time.monotonic() + timeout_s
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, end - time.monotonic()))
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self.args, timeout_s)
        self.wait(max(0.0, end - time.monotonic()))
        return parts["out"], parts["err"]

    def close(self) -> None:
        """Close the three streams on this side."""
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    def _took(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class Wire:
    """Carries the streams of all programs of one node, in a thread of its own.

    ``connection`` is the host's end of the node's serial port. ``ready`` is set when the node has reported.
    """

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.ready, self.uptime_s = threading.Event(), float("nan")
        self.ended = threading.Event()
        self._name, self._port, self._lock = name, connection.detach(), threading.Lock()
        self._bell, self._ring = os.pipe()
        self._pump, self._frames = Pump(), channel.Frames()
        self._programs: dict[int, Process] = {}
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._count, self._open = 0, True
        self._pump.read(self._port, self._hear)
        self._pump.read(self._bell, self._obey)
        self._thread = threading.Thread(target=self._carry, name=f"rack-{name}", daemon=True)
        self._thread.start()

    def start(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | Path = ROOT
    ) -> Process:
        """Start a program on the node. One that cannot be started ends with 127 and the reason on stderr.

        ConnectionError when the node has ended.
        """
        if self.ended.is_set():
            raise ConnectionError(f"{self._name} has ended: no program can be started on it")
        self._count += 1
        program = Process(self, self._count, argv)
        wanted = {"argv": program.args, "env": dict(env or {}), "cwd": str(cwd)}
        self._order(lambda: self._begin(program, marshal.dumps(wanted)))
        return program

    def send(self, number: int, kind: int, payload: bytes = b"") -> None:
        """One frame to the node."""
        self._order(lambda: self._pump.write(self._port, channel.frame(number, kind, payload)))

    def end_programs(self) -> None:
        """Kill all that still run."""
        for program in list(self._programs.values()):
            program.kill()

    def close(self) -> None:
        """End the wire: the node powers off, programs end with -9."""
        self._order(self._shut)
        self._thread.join(KILLED_S)

    def _order(self, order: Callable[[], None]) -> None:
        with self._lock:
            if not self.ended.is_set():
                self._orders.put(order)
                os.write(self._ring, b"!")

    def _obey(self, _: bytes) -> None:
        while not self._orders.empty():
            self._orders.get()()

    def _begin(self, program: Process, wanted: bytes) -> None:
        number = program._number
        self._programs[number] = program
        self._pump.write(self._port, channel.frame(number, START, wanted))

        def consume(data: bytes) -> None:
            self._pump.write(self._port, channel.frame(number, STDIN, data))
            if not data:
                self._end(program, STDIN)

        self._pump.read(program._ends[STDIN], consume)

    def _end(self, program: Process, kind: int) -> None:
        if kind in program._ends:
            self._pump.end(program._ends.pop(kind))

    def _hear(self, data: bytes) -> None:
        if not data:
            self._open = False
        for number, kind, payload in self._frames.feed(data):
            if kind == READY:
                self.uptime_s = float(payload)
                self.ready.set()
            elif number in self._programs:
                self._pass_on(self._programs[number], kind, payload)

    def _pass_on(self, program: Process, kind: int, payload: bytes) -> None:
        if kind == EXIT:
            program._took(int(payload))
        elif payload:
            self._pump.write(program._ends[kind], payload)
        else:
            self._end(program, kind)
        if program.returncode is not None and not {STDOUT, STDERR} & set(program._ends):
            self._end(program, STDIN)
            del self._programs[program._number]

    def _shut(self) -> None:
        self._open = False

    def _carry(self) -> None:
        while self._open:
            self._pump.turn()
        with self._lock:  # no order comes after this
            self.ended.set()
            self._obey(b"")
            os.close(self._ring)
        for program in self._programs.values():
            for kind in (STDIN, STDOUT, STDERR):
                self._end(program, kind)
            if program.returncode is None:
                program._took(-signal.SIGKILL)
        self._pump.close()


def _pair(mode: str) -> tuple[IO[bytes], int]:
    """A file for the caller and the descriptor of its other end."""
    ours, theirs = socket.socketpair()
    return os.fdopen(ours.detach(), mode, buffering=0), theirs.detach()


def _read_all(stream: IO[bytes]) -> bytes:
    return b"".join(iter(lambda: stream.read(channel.CHUNK_BYTES), b""))
