"""The rank process: ``python -m tbkit.rank.process``, started by exec from its engine, ends with it.

First act: die with the parent. Then it answers commands, one at a time, until the socket closes.
SIGINT stops a command (the engine has set the fabric's interrupt flag as well), SIGTERM ends in order.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from types import FrameType
from typing import Any

from tbkit import _kernels
from tbkit.errors import Interrupted, TbkitError
from tbkit.rank import wire
from tbkit.rank.body import Body, describe
from tbkit.rank.scratch import Scratch

HEARTBEAT_S = 0.25


class Process:
    """The command loop of one rank process."""

    def __init__(self, sock: socket.socket, node: str, scratch: Scratch) -> None:
        self.sock = sock
        self.busy = False
        self.body = Body(node, scratch, self._stream)

    def _stream(self, text: str) -> None:
        wire.send(self.sock, {"stream": text})

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """SIGINT: stop the running command, if there is one."""
        if self.busy:
            raise Interrupted("rank process", "stopped by Ctrl-C")

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run one command; whatever goes wrong is an answer too."""
        self.busy = True
        try:
            return {"ok": self.body.do(message["verb"], message["args"])}
        except (Exception, KeyboardInterrupt) as error:
            return {"error": describe(error)}
        finally:
            self.busy = False

    def serve(self) -> None:
        """Answer until the engine closes the socket."""
        while True:
            try:
                message = wire.receive(self.sock)
            except EOFError:
                return
            try:
                reply = self.answer(message)
            except Interrupted as error:
                reply = {"error": describe(error)}
            try:
                wire.send(self.sock, reply)
            except (TypeError, ValueError, OverflowError) as error:  # it cannot be packed: nothing was sent
                wire.send(self.sock, {"error": describe(error)})


def _terminate(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> int:
    """Entry of the rank process."""
    parser = argparse.ArgumentParser(prog="tbkit.rank.process")
    for name in ("socket", "heartbeat", "scratch", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--node", required=True)
    args = parser.parse_args()
    _kernels.die_with_parent(args.parent)
    _kernels.start_heartbeat(args.heartbeat, HEARTBEAT_S)
    process = Process(socket.socket(fileno=args.socket), args.node, Scratch(args.scratch))
    signal.signal(signal.SIGINT, process.interrupt)
    signal.signal(signal.SIGTERM, _terminate)
    wire.send(process.sock, {"ok": "ready"})
    try:
        process.serve()
    except (OSError, TbkitError):
        return 1
    finally:
        process.body.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
