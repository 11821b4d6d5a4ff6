"""The engine's side of a rank process: start it, ask it, watch it, stop it.

One engine has one :class:`Supervisor`; the functions at the end are what a client applies on engines.
They give plain data and never raise what is ours: ``{"ok": value}`` or ``{"error": {...}}``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from tbkit import fabric
from tbkit.errors import (
    BufferRejected,
    ConnectFailed,
    DeadlinePassed,
    FabricError,
    Interrupted,
    RankDied,
    TbkitError,
    from_dict,
)
from tbkit.rank import wire
from tbkit.rank.owner import Owner
from tbkit.rank.owner import watch as watch_owner
from tbkit.rank.scratch import Scratch

START_DEADLINE_S = 30.0
STOP_GRACE_S = 2.0
FROZEN_AFTER_S = 5.0
POLL_S = 0.05

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")


def exit_words(code: int) -> str:
    """How a process ended: its exit code, or for a negative one the signal that killed it."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


class Supervisor:
    """Starts and watches the rank process of this engine's node."""

    def __init__(self, node: str, env: dict[str, str]) -> None:
        self.node, self.env = node, env
        self.scratch = Scratch()
        self.process: subprocess.Popen[bytes] | None = None
        self.observers: dict[
            bool, tuple[fabric.Observer, int]
        ] = {}  # world or not: the group, this rank in it
        self.world_formed = False
        self.start()

    def start(self, extra: dict[str, str] | None = None) -> None:
        """Start the rank process and wait until it answers. ConnectFailed when it does not."""
        self.sock, theirs = socket.socketpair()
        self.beats, beat = socket.socketpair()
        fds = {"socket": theirs.fileno(), "heartbeat": beat.fileno(), "scratch": self.scratch.fd}
        command = [
            sys.executable,
            "-m",
            "tbkit.rank.process",
            "--node",
            self.node,
            "--parent",
            str(os.getpid()),
        ]
        for name, fd in fds.items():
            command += [f"--{name}", str(fd)]
        env = os.environ | THREADS | self.env | (extra or {})
        self.process = subprocess.Popen(
            command, env=env, pass_fds=tuple(fds.values()), stdin=subprocess.DEVNULL
        )
        theirs.close()
        beat.close()
        self.last_beat = time.monotonic()
        try:
            self._await("start", START_DEADLINE_S)
        except (TbkitError, EOFError, OSError) as error:
            self.stop(signal.SIGKILL)
            raise ConnectFailed(
                f"{self.node}: rank process", "starts", str(error) or "it ended", "See the engine's log"
            ) from error

    def call(self, verb: str, args: dict[str, Any], deadline_s: float) -> Any:
        """Ask the rank and wait. Errors of the rank are raised as they are; Ctrl-C stops the rank's command."""
        if self.process is None or self.process.poll() is not None:
            raise self._death(verb)
        try:
            wire.send(self.sock, {"verb": verb, "args": args})
            message = self._await(verb, deadline_s)
        except KeyboardInterrupt:
            self._interrupt()
            raise Interrupted(f"{self.node}: {verb}", "stopped by Ctrl-C") from None
        except (EOFError, OSError):
            raise self._death(verb) from None
        except DeadlinePassed as error:
            if error.facts.get("frozen"):
                self.stop(signal.SIGKILL)
            else:
                self._interrupt()
            raise
        if "error" in message:
            told = from_dict(message["error"])
            if isinstance(told, FabricError) and not isinstance(told, BufferRejected):
                self.world_formed = False  # perhaps of another group; forming one too many does no harm
            raise told
        return message["ok"]

    def _await(self, verb: str, deadline_s: float) -> dict[str, Any]:
        """The rank's answer, ok or error; what it streams before is printed."""
        end = time.monotonic() + deadline_s
        while True:
            ready, _, _ = select.select([self.sock, self.beats], [], [], POLL_S)
            if self.beats in ready and self.beats.recv(4096):
                self.last_beat = time.monotonic()
            if self.sock in ready:
                message = wire.receive(self.sock, deadline_s=max(1.0, end - time.monotonic()))
                if "stream" in message:
                    print(message["stream"], end="", flush=True)
                    continue
                return message
            assert self.process is not None, "a call has a process"
            if self.process.poll() is not None:
                raise EOFError
            self._check_time(verb, end, deadline_s)

    def _check_time(self, verb: str, end: float, deadline_s: float) -> None:
        now = time.monotonic()
        if now - self.last_beat > FROZEN_AFTER_S:
            got = f"no heartbeat for {now - self.last_beat:.1f} s"
            remedy = (
                "It is stopped or the machine is overloaded; it is ended, and the next call starts a new one"
            )
            raise DeadlinePassed(
                f"{self.node}: {verb}", "the rank process is alive", got, remedy, node=self.node, frozen=True
            )
        if now > end:
            got = f"nothing after {deadline_s:g} s"
            raise DeadlinePassed(
                f"{self.node}: {verb}", "answers before its deadline", got, self._last(), node=self.node
            )

    def observe(self, name: str, rank: int, size: int, world: bool) -> None:
        """Watch a group that is about to form, in place of the one of its kind before."""
        if world in self.observers:
            self.observers.pop(world)[0].close()
        self.observers[world] = fabric.observe(name, size), rank

    def observe_formed(self, segment: str, rank: int, world: bool) -> None:
        """Watch a group that its rank has just formed over a mesh. Only Linux lets us look in from outside."""
        if world in self.observers:
            self.observers.pop(world)[0].close()
        if sys.platform == "linux":
            self.observers[world] = fabric.observe(segment), rank

    def _last(self) -> str:
        seen = [observer.ranks()[rank] for observer, rank in self.observers.values()]
        latest = max(seen, key=lambda facts: facts.start_ns, default=None)
        return (
            f"Last fabric operation: {latest}"
            if latest and latest.start_ns
            else "No fabric operation had begun"
        )

    def _death(self, verb: str) -> RankDied:
        code = self._exit_code()
        got = "it was ended before" if code is None else exit_words(code)
        remedy = f"{self._last()}. The next call starts a new rank process"
        return RankDied(
            f"{self.node}: rank process", f"lives through {verb}", got, remedy, node=self.node, exit_code=code
        )

    def _exit_code(self) -> int | None:
        """How the process ended; one that has left the socket and lives on is ended. None where there is none."""
        if self.process is None:
            return None
        try:
            return self.process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(STOP_GRACE_S)

    def _interrupt(self) -> None:
        """Stop the running command: flag and SIGINT, SIGTERM after 2 s, SIGKILL as the last resort."""
        assert self.process is not None, "only a running command is interrupted"
        for observer, rank in self.observers.values():
            observer.interrupt([rank])
        self.process.send_signal(signal.SIGINT)
        try:
            if self._answers_within(STOP_GRACE_S):
                return
        except (EOFError, OSError, DeadlinePassed, KeyboardInterrupt):
            pass  # a second Ctrl-C does not wait: an answer that nobody took would be the next call's
        self.stop(signal.SIGTERM)

    def _answers_within(self, seconds: float) -> bool:
        """Whether the rank ends its command in time; the answer is thrown away."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.alive():
            ready = select.select([self.sock], [], [], POLL_S)[0]
            if ready and "stream" not in wire.receive(self.sock, deadline_s=1.0):
                return True
        return False

    def stop(self, first: signal.Signals = signal.SIGTERM) -> str:
        """End the rank process; says how it ended."""
        if self.process is None:
            return "not running"
        self.sock.close()
        self.beats.close()
        how = first.name
        if self.process.poll() is None:
            self.process.send_signal(first)
            try:
                self.process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                how = "SIGKILL, the last resort"
                self.process.kill()
                self.process.wait(STOP_GRACE_S)
        self.process, self.world_formed = None, False
        return how

    def world_stands(self) -> bool:
        """Whether the group of all nodes was formed and no fault has ended it."""
        observed = self.observers.get(True)
        return self.world_formed and (observed is None or observed[0].broken is None)

    def alive(self) -> bool:
        """Whether the rank process runs."""
        return self.process is not None and self.process.poll() is None


_supervisor: Supervisor | None = None


def _answer(action: Any) -> dict[str, Any]:
    try:
        return {"ok": action()}
    except TbkitError as error:
        return {"error": error.to_dict()}
    except KeyboardInterrupt:
        return {"error": Interrupted("engine", "stopped by Ctrl-C").to_dict()}


def _current() -> Supervisor:
    if _supervisor is None:
        raise ConnectFailed("engine", "has a rank process", "none", "Call cl.heal()")
    return _supervisor


def begin(node: str, rank: int, size: int, env: dict[str, str], owner: Owner | None = None) -> dict[str, Any]:
    """Start this engine's rank process and put node, rank, size, fabric, np and mx into the engine's namespace.

    Where an ``owner`` is named, all of it ends with that process.
    """

    def action() -> dict[str, Any]:
        global _supervisor
        if _supervisor is not None:
            _supervisor.stop()
        _supervisor = Supervisor(node, env)
        from tbkit.rank.handle import install

        install(_supervisor, node, rank, size)
        if owner is not None:
            watch_owner(owner)
        assert _supervisor.process is not None, "begin leaves a running process"
        return {"engine_pid": os.getpid(), "rank_pid": _supervisor.process.pid}

    return _answer(action)


def restart(extra: dict[str, str]) -> dict[str, Any]:
    """A new rank process in place of the old one, with more environment variables."""

    def action() -> dict[str, Any]:
        current = _current()
        current.stop()
        current.start(extra)
        assert current.process is not None, "start leaves a running process"
        return {"engine_pid": os.getpid(), "rank_pid": current.process.pid}

    return _answer(action)


def ask(verb: str, args: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """Ask this engine's rank."""
    return _answer(lambda: _current().call(verb, args, deadline_s))


def join(name: str, rank: int, size: int, deadline_s: float, policy: str, world: bool) -> dict[str, Any]:
    """Form a group and observe it, so that a death can name the last operation."""

    def action() -> Any:
        current = _current()
        current.observe(name, rank, size, world)
        args = {
            "name": name,
            "rank": rank,
            "size": size,
            "deadline_s": deadline_s,
            "policy": policy,
            "world": world,
        }
        answer = current.call("join", args, deadline_s + 5.0)
        current.world_formed = current.world_formed or world
        return answer

    return _answer(action)


def start(rank: int, deadline_s: float, world: bool, args: dict[str, Any]) -> dict[str, Any]:
    """Last step of a group over a mesh, and observe it."""

    def action() -> Any:
        current = _current()
        shared = {"deadline_s": deadline_s, "world": world}
        answer = current.call("start", args | shared, deadline_s + 5.0)
        current.observe_formed(answer["segment"], rank, world)
        current.world_formed = current.world_formed or world
        return answer

    return _answer(action)


def watch() -> dict[str, Any]:
    """Whether the rank lives and the group of all nodes stands; answers without asking the rank."""

    def action() -> dict[str, Any]:
        current = _current()
        pid = current.process.pid if current.process else None
        return {
            "alive": current.alive(),
            "world": current.world_stands(),
            "rank_pid": pid,
            "engine_pid": os.getpid(),
        }

    return _answer(action)


def end() -> dict[str, Any]:
    """Stop the rank process in order."""

    def action() -> str:
        global _supervisor
        how = _supervisor.stop() if _supervisor else "not running"
        _supervisor = None
        return how

    return _answer(action)
