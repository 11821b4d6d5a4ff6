"""Waiting for ranks: until all have answered, the deadline, a death, or Ctrl-C. Never for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tbkit.errors import (
    DeadlinePassed,
    EngineDied,
    FabricTimeout,
    Interrupted,
    PeerDied,
    RankDied,
    TbkitError,
    from_dict,
)

if TYPE_CHECKING:
    from tbkit.cluster.engines import Engines

POLL_S = 0.1
AFTER_DEATH_S = 4.0
AFTER_INTERRUPT_S = 5.0
CAUSES: tuple[type[TbkitError], ...] = (EngineDied, RankDied, Interrupted)
ECHOES: tuple[type[TbkitError], ...] = (PeerDied, FabricTimeout, DeadlinePassed)


class Call(msgspec.Struct):
    """One rank's pending answer."""

    node: str
    pending: Any
    seen: int = 0
    answer: Any = None
    error: TbkitError | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


def gather(
    engines: Engines, calls: Sequence[Call], deadline_s: float, on_text: Callable[[str], None] | None
) -> list[Any]:
    """The values of all calls, in order; else the error that explains the others is raised."""
    end, died = time.monotonic() + deadline_s, False
    try:
        while not all(call.done for call in calls) and time.monotonic() < end:
            _poll(engines, calls, on_text)
            if not died and any(isinstance(call.error, RankDied | EngineDied) for call in calls):
                died, end = True, min(end, time.monotonic() + AFTER_DEATH_S)
                _interrupt_rest(engines, calls)  # once: a second SIGINT would hit the rank's orderly stop
    except KeyboardInterrupt:
        _stop(engines, calls)
        raise Interrupted("run", "stopped by Ctrl-C", remedy="The cluster stays; call again") from None
    for call in calls:
        if not call.done:
            call.error = DeadlinePassed(
                f"{call.node}: engine", f"answers within {deadline_s:g} s", "nothing", node=call.node
            )
    if errors := [call.error for call in calls if call.error is not None]:
        raise _cause(errors)
    return [call.answer["ok"] for call in calls]


def _poll(engines: Engines, calls: Sequence[Call], on_text: Callable[[str], None] | None) -> None:
    waiting = [call for call in calls if not call.done]
    waiting[0].pending.wait(POLL_S)
    for call in waiting:
        if on_text is not None and call is calls[0]:
            _pass_text(call, on_text)
        if call.pending.ready():
            _take(call)
        elif not engines.launched(call.node):
            call.error = _engine_death(call.node)


def _take(call: Call) -> None:
    from ipyparallel.error import EngineError, RemoteError

    try:
        call.answer = call.pending.get(timeout=1.0)
    except EngineError:
        call.error = _engine_death(call.node)
    except RemoteError as error:
        if error.ename == EngineError.__name__:  # so the controller reports a death that the nanny saw
            call.error = _engine_death(call.node)
            return
        call.error = TbkitError(
            f"{call.node}: engine", "runs what it is given", f"{error.ename}: {error.evalue}"
        )
    else:
        if "error" in call.answer:
            call.error = from_dict(call.answer["error"])


def _engine_death(node: str) -> EngineDied:
    return EngineDied(
        f"{node}: engine",
        "lives through the call",
        "its process ended",
        "The next call starts a new one under the same rank",
        node=node,
    )


def _pass_text(call: Call, on_text: Callable[[str], None]) -> None:
    text = call.pending.stdout
    text = text if isinstance(text, str) else "".join(text)
    if len(text) > call.seen:
        on_text(text[call.seen :])
        call.seen = len(text)


def _interrupt_rest(engines: Engines, calls: Sequence[Call]) -> None:
    """After a death the others would wait for their deadline: give them a moment to see it, then stop them."""
    end = time.monotonic() + 1.5
    while time.monotonic() < end and not all(call.done for call in calls):
        _poll(engines, calls, None)
    if rest := [call.node for call in calls if not call.done]:
        engines.interrupt(rest)


def _stop(engines: Engines, calls: Sequence[Call]) -> None:
    engines.interrupt([call.node for call in calls if not call.done])
    end = time.monotonic() + AFTER_INTERRUPT_S
    with suppress(KeyboardInterrupt):  # a second Ctrl-C abandons the wait
        while time.monotonic() < end and not all(call.done for call in calls):
            _poll(engines, calls, None)


def _cause(errors: list[TbkitError]) -> TbkitError:
    """A death explains the time-outs of the others; a fault of a rank's own explains the echo on its peers."""
    for kind in CAUSES:
        for error in errors:
            if isinstance(error, kind):
                return error
    return next((e for e in errors if not isinstance(e, ECHOES)), errors[0])
