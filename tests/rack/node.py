"""One node of the rack: its qemu process, console log, monitor, and the programs that the host starts on it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.rack.images import Images
from tests.rack.remote import ROOT, Process, Wire

LOGS = ROOT / "build" / "rack"
GUEST = Path(__file__).with_name("guest.sh")
MEMORY_MIB = 1536
# All but the first three are there to boot sooner.
KERNEL_OPTIONS = (
    "console=ttyS0 panic=-1 quiet mitigations=off tsc=reliable random.trust_cpu=on cryptomgr.notests apparmor=0 "
    "audit=0 nowatchdog"
)
MONITOR_S = 10.0
KILLED_S = 10.0


class RackError(Exception):
    """A node did not do what it should; says which, what was waited for, and the end of its console."""


class End(NamedTuple):
    """A node's end of a cable: the socket that qemu gets, and whether it listens there."""

    socket: socket.socket
    listens: bool


class Monitor:
    """qemu's machine protocol (QMP), one question at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(MONITOR_S)
        self._connection, self._file = connection, connection.makefile("rwb", buffering=0)
        self._greeted = False

    def ask(self, command: str, **arguments: Any) -> Any:
        """What qemu returns; RackError where it refuses or does not answer within MONITOR_S."""
        if not self._greeted:
            self._greeted = True
            self.ask("qmp_capabilities")
        question = {"execute": command, "arguments": arguments}
        self._file.write(json.dumps(question).encode() + b"\n")
        while line := self._file.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise RackError(f"qemu refuses {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise RackError(f"qemu ended before it answered {command}")

    def close(self) -> None:
        self._file.close()
        self._connection.close()


class Node:
    """A virtual machine named by its number. It starts at once; ``await_ready`` waits until it serves.

    ``cables``: the end of each cable by the peer's number; they are closed here once qemu has them.
    """

    def __init__(self, number: int, cables: Mapping[int, End], images: Images, processors: int = 1) -> None:
        self.number, self.images, self.processors = number, images, processors
        self.log = LOGS / f"node-{number}.log"
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        self._started = time.monotonic()
        self.ready_s = float("nan")
        wire, far_wire = socket.socketpair()
        monitor, far_monitor = socket.socketpair()
        given = [far_wire, far_monitor, *(end.socket for end in cables.values())]
        command = self._command(cables, far_wire.fileno(), far_monitor.fileno())
        # It must not outlive this process however that ends; a Ctrl-C is for pytest alone, which then ends it.
        with self.log.with_suffix(".qemu").open("wb") as said:
            self._qemu = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                pass_fds=[each.fileno() for each in given],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        for each in given:
            each.close()
        self._monitor, self._wire = Monitor(monitor), Wire(wire, f"node {number}")

    def _command(self, cables: Mapping[int, End], wire: int, monitor: int) -> list[str]:
        kernel = {"script": GUEST, "node": self.number, "python": sys.executable, "keys": self.images.keys}
        words = " ".join(f"rack.{name}={value}" for name, value in kernel.items())
        # fmt: off
        command = [
            "qemu-system-x86_64", "-name", f"rack-{self.number}", "-machine", "pc", "-accel", "tcg,tb-size=256",
            "-cpu", "max", "-m", str(MEMORY_MIB), "-smp", str(self.processors),
            "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", f"file:{self.log}", "-kernel", str(self.images.kernel), "-initrd", str(self.images.initramfs),
            "-append", f"{KERNEL_OPTIONS} {words}",
            "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
            "-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control",
            "-device", "virtio-serial-pci", "-chardev", f"socket,id=wire,fd={wire}",
            "-device", "virtserialport,chardev=wire,name=wire",
            "-netdev", "user,id=mgmt,hostfwd=tcp:127.0.0.1:0-:22", *self._card("mgmt", 0),
        ]
        for peer, end in cables.items():
            server = "on" if end.listens else "off"
            command += [
                "-netdev", f"stream,id=cable{peer},server={server},addr.type=fd,addr.str={end.socket.fileno()}",
                *self._card(f"cable{peer}", peer),
            ]
        # fmt: on
        return command

    def _card(self, netdev: str, peer: int) -> list[str]:
        address = f"52:54:00:00:{self.number:02x}:{peer:02x}"
        return ["-device", f"virtio-net-pci,netdev={netdev},mac={address},romfile="]

    @property
    def pid(self) -> int:
        """Of the qemu process."""
        return self._qemu.pid

    @property
    def alive(self) -> bool:
        """Whether qemu runs, frozen or not."""
        return self._qemu.poll() is None

    @property
    def uptime_s(self) -> float:
        """The node's own count from the start of its kernel until it was ready."""
        return self._wire.uptime_s

    def await_ready(self, deadline: float) -> None:
        """Wait until the node serves, at most to ``deadline`` of time.monotonic(); RackError if it does not."""
        while not self._wire.ready.wait(0.1):
            if not self.alive or time.monotonic() > deadline:
                what = "is not ready" if self.alive else f"ended with {self._qemu.returncode}"
                raise RackError(f"node {self.number} {what}; its console: {self.console()}")
        self.ready_s = time.monotonic() - self._started

    def console(self, most: int = 1500) -> str:
        """The end of what qemu and the kernel said."""
        files = [file for file in (self.log.with_suffix(".qemu"), self.log) if file.exists()]
        return "\n".join(file.read_text(errors="replace") for file in files)[-most:].strip()

    def start(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | Path = ROOT
    ) -> Process:
        """Start a program on the node: its stdin and stdout are its control plane, unbuffered, for hours."""
        return self._wire.start(argv, env, cwd)

    def run(
        self, command: str | Sequence[str], timeout_s: float, data: bytes = b"", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run to its end: an argument list, or a string for bash; ``data`` is its stdin.

        Options are those of ``start``. At the deadline it is killed and subprocess.TimeoutExpired raised.
        """
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        program = self.start(argv, **options)
        try:
            program.stdin.write(data)
            out, err = program.communicate(timeout_s)
        except subprocess.TimeoutExpired:
            program.kill()
            raise subprocess.TimeoutExpired(f"node {self.number}: {' '.join(argv)}", timeout_s) from None
        finally:
            program.close()
        return subprocess.CompletedProcess(argv, program.wait(timeout_s), *map(_text, (out, err)))

    def end_programs(self) -> None:
        """Kill every program that the host started here and that still runs."""
        self._wire.end_programs()

    def forget_files(self) -> None:
        """Let the node read anew what has changed on the host: it keeps every file and folder it has seen."""
        self.run("echo 3 > /proc/sys/vm/drop_caches", 30.0)

    def set_link(self, peer: int, up: bool) -> None:
        """Plug or unplug this node's end of the cable to ``peer``: the port sees it."""
        self._monitor.ask("set_link", name=f"cable{peer}", up=up)

    def ssh_port(self) -> int:
        """The port of 127.0.0.1 that leads to the node's sshd."""
        said = self._monitor.ask("human-monitor-command", **{"command-line": "info usernet"})
        port = re.search(r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", said)
        assert port is not None, said
        return int(port.group(1))

    def ssh(self) -> list[str]:
        """The ssh command to this node, to which a command is added. A new connection takes seconds."""
        # The node was made by this process and listens on this host alone: its key need not be known.
        options = (
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
        )
        words = [word for option in options for word in ("-o", option)]
        key = str(self.images.keys / "client")
        return ["ssh", "-F", "none", "-i", key, "-p", str(self.ssh_port()), *words, "root@127.0.0.1"]

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End qemu, at once; what ran on the node ends with -9."""
        self._qemu.kill()
        self._qemu.wait(KILLED_S)
        self._wire.close()
        self._monitor.close()


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
