"""The exception tree. Every message says subject, rule, what was got, and the remedy.

::

    TbkitError
    ├── UsageError            a verb, flag or argument that is not there          exit 2
    ├── InputError            a file that cannot be read as what it should be     exit 2
    ├── ClusterError          the machines
    │   ├── ConnectFailed     an engine or rank did not come up
    │   ├── EngineDied        the ipyparallel engine of a node ended
    │   ├── RankDied          a rank process ended; names the last operation
    │   └── DeadlinePassed    a call to a rank did not answer in time
    ├── FabricError           the channels between ranks
    │   ├── LinkFailed        a cable, a queue pair or a connection did not come up
    │   ├── PeerDied          the process of a peer is gone
    │   ├── PeerSilent        nothing is heard of a peer: frozen, ended, or its cable is pulled
    │   ├── FabricTimeout     a peer did not come to the operation in time
    │   ├── CorruptFrame      a frame has a wrong header, length or sequence
    │   └── BufferRejected    an array that cannot be sent or written as it is
    ├── Interrupted           Ctrl-C, or a stop asked for by the controller
    ├── PlanError             a placement that cannot be                          exit 1
    └── RunError              a run whose answer is bad                           exit 1
        ├── NotApplied        an intervention changed the work
        └── RunCutShort       a run folder that no finished run left

Catch the base class to catch all of it::

    try:
        run = tb.scale(cl, "decode", plans)
    except tb.TbkitError as error:
        print(error)
"""

from __future__ import annotations

from typing import Any, ClassVar


class TbkitError(Exception):
    """Base of all errors. ``facts`` holds the data of the message for programs."""

    exit_code: ClassVar[int] = 1

    def __init__(self, subject: str, rule: str = "", got: str = "", remedy: str = "", **facts: Any) -> None:
        self.subject, self.rule, self.got, self.remedy = subject, rule, got, remedy
        self.facts: dict[str, Any] = facts
        text = f"{subject}: {rule}" if rule else subject
        text += f" (got {got})" if got else ""
        text += f". {remedy}" if remedy else ""
        super().__init__(text)

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which :func:`from_dict` builds the same error in another process."""
        return {
            "type": type(self).__name__,
            "subject": self.subject,
            "rule": self.rule,
            "got": self.got,
            "remedy": self.remedy,
            "facts": self.facts,
        }


class UsageError(TbkitError):
    """A verb, flag or argument that does not exist or does not fit."""

    exit_code = 2


class InputError(TbkitError):
    """A file, folder or configuration that cannot be read as what it should be."""

    exit_code = 2


class ClusterError(TbkitError):
    """Something went wrong with the machines of a cluster."""


class ConnectFailed(ClusterError):
    """An engine or a rank process did not come up in time."""


class EngineDied(ClusterError):
    """The ipyparallel engine of a node ended."""


class RankDied(ClusterError):
    """A rank process ended; names node, exit cause and the last fabric operation."""


class DeadlinePassed(ClusterError):
    """A call to a rank process did not answer before its deadline."""


class FabricError(TbkitError):
    """Something went wrong on the channels between ranks."""


class LinkFailed(FabricError):
    """What leads to another node did not come up; names the cable, the step and the system's error."""


class PeerDied(FabricError):
    """The process of a peer is gone; names peer and operation."""


class PeerSilent(FabricError):
    """Nothing is heard any more of a peer on another node; names the node and the cable."""


class FabricTimeout(FabricError):
    """A peer did not come to an operation before the deadline; names the absent ranks."""


class CorruptFrame(FabricError):
    """A frame arrived whose header, length or sequence is wrong; names peer and operation."""


class BufferRejected(FabricError, TypeError):
    """An array that is not dense, not writable, or of a type that is not taken."""


class Interrupted(TbkitError):
    """The user pressed Ctrl-C, or the controller asked the ranks to stop."""

    exit_code = 130


class PlanError(TbkitError):
    """A placement that cannot be, with the reason."""


class RunError(TbkitError):
    """A run whose answer is bad."""


class NotApplied(RunError):
    """An intervention changed the work that it should only have observed."""


class RunCutShort(RunError):
    """A run folder that was left by a run which did not finish."""

    exit_code = 2


def _tree(cls: type[TbkitError]) -> dict[str, type[TbkitError]]:
    names = {cls.__name__: cls}
    for child in cls.__subclasses__():
        names |= _tree(child)
    return names


def from_dict(data: dict[str, Any]) -> TbkitError:
    """The error that :meth:`TbkitError.to_dict` described; an unknown type becomes the base class."""
    cls = _tree(TbkitError).get(str(data.get("type")), TbkitError)
    return cls(data["subject"], data["rule"], data["got"], data["remedy"], **data["facts"])
