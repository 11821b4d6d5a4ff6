"""Process 1 of a node once ``guest.sh`` has set it up: starts programs for the host and carries their streams.

Usage: agent.py PORT. When the host's side of the port ends, nobody needs the node any more: it powers off.
Under emulation each import costs: no pathlib, no json.
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120
import channel

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class Agent:
    """The programs of this node by number, and the port on which the host speaks."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pump = channel.Pump()
        self.frames = channel.Frames()
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.inputs: dict[int, int] = {}
        self.pump.read(port, self.obey)

    def say(self, number: int, kind: int, payload: bytes = b"") -> None:
        self.pump.write(self.port, channel.frame(number, kind, payload))

    def obey(self, data: bytes) -> None:
        """What the host asks for; its end is the node's end."""
        if not data:
            with open("/proc/sysrq-trigger", "w") as trigger:  # noqa: PTH123
                trigger.write("o")
        for number, kind, payload in self.frames.feed(data):
            if kind == channel.START:
                self.start(number, marshal.loads(payload))
            elif kind == channel.STDIN:
                self.feed(number, payload)
            elif kind == channel.SIGNAL:
                self.signal(number, int(payload))

    def start(self, number: int, wanted: dict) -> None:
        """Start a program in a session of its own; one that cannot be started says why and ends with 127."""
        pipe, environment = subprocess.PIPE, ENVIRONMENT | wanted["env"]
        try:
            child = subprocess.Popen(
                wanted["argv"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0,
                cwd=wanted["cwd"], env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return self.refuse(number, error)
        self.children[number] = child
        self.inputs[number] = os.dup(child.stdin.fileno())
        child.stdin.close()
        self.carry(number, channel.STDOUT, child.stdout)
        self.carry(number, channel.STDERR, child.stderr)
        watched = os.pidfd_open(child.pid)
        self.pump.read(watched, lambda _: self.reap(number, watched))
        return None

    def refuse(self, number: int, error: OSError) -> None:
        self.say(number, channel.STDERR, f"{error}\n".encode())
        self.say(number, channel.STDERR)
        self.say(number, channel.STDOUT)
        self.say(number, channel.EXIT, b"127")

    def carry(self, number: int, kind: int, stream) -> None:
        descriptor = os.dup(stream.fileno())
        stream.close()

        def consume(data: bytes) -> None:
            self.say(number, kind, data)
            if not data:
                self.pump.end(descriptor)

        self.pump.read(descriptor, consume, into=self.port)

    def feed(self, number: int, data: bytes) -> None:
        if number not in self.inputs:
            return
        if data:
            self.pump.write(self.inputs[number], data)
        else:
            self.pump.end(self.inputs.pop(number))

    def signal(self, number: int, which: int) -> None:
        """To the whole session of the program: what it started ends with it."""
        if number in self.children:
            os.killpg(self.children[number].pid, which)

    def reap(self, number: int, watched: int) -> None:
        child = self.children.pop(number)
        self.pump.end(watched)
        self.feed(number, b"")
        self.say(number, channel.EXIT, str(child.wait()).encode())


def main() -> None:
    os.environ.clear()
    agent = Agent(os.open(sys.argv[1], os.O_RDWR))
    with open("/proc/uptime", "rb") as uptime:  # noqa: PTH123
        agent.say(0, channel.READY, uptime.read().split()[0])
    while True:
        agent.pump.turn()


if __name__ == "__main__":
    main()
