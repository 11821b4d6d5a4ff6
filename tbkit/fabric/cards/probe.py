"""The loops of a measurement, as one rank of a pair or a group runs them; raw samples, nothing summed up.

Both ranks of a pair call the same function. How often a loop turns is settled by its first rank from a few turns
beforehand, so that a loaded machine takes longer by a bound and not by a factor; the other is told through the channel.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from tbkit.fabric.group import Group

Samples = npt.NDArray[np.float64]
TRIAL = 5  # turns before the samples: they warm up, and say how long a turn takes
LEAST_TURNS, LEAST_WINDOWS = 10, 3
LEAST_MESSAGES, STREAM_MESSAGES, TURN_MESSAGES = 4, 4096, 512  # of a window
TRIAL_MESSAGES, TRIAL_BYTES = 64, 1 << 20
PIECE_BYTES = 16 << 10  # both ways at once: any channel holds four of them
AHEAD = 4
DEADLINE_S = 60.0  # of one loop


def turns(turn_us: float, most: int, budget_s: float, least: int) -> int:
    """How many turns of ``turn_us`` fit the budget, from ``least`` to ``most``."""
    return max(min(least, most), min(most, int(budget_s * 1e6 / max(turn_us, 1e-3))))


def latency(
    group: Group, peer: int, sizes: Sequence[int], iterations: int, budget_s: float
) -> dict[str, Samples]:
    """Half round trips in µs by size, in the order given; ``budget_s`` is for each size."""
    found = {}
    for size in sizes:
        trial = group.pingpong(peer, size, TRIAL, deadline_s=DEADLINE_S)
        count = _agreed(group, peer, turns(2 * float(np.median(trial)), iterations, budget_s, LEAST_TURNS))
        found[str(size)] = group.pingpong(peer, size, count, deadline_s=DEADLINE_S)
    return found


def stream(
    group: Group,
    source: int,
    target: int,
    sizes: Sequence[int],
    window_bytes: int,
    windows: int,
    budget_s: float,
) -> dict[str, Samples]:
    """A stream from one rank to another. The target gives, by size, rows of (messages, µs), one a window.

    A window is timed at the target from the end of its first message to that of its last, and then answered, so that
    what stands in buffers of the one is no gift to the next. ``messages`` counts those in that time.
    """
    peer, found = target if group.rank == source else source, {}
    for size in sizes:
        data = np.zeros(size, np.uint8)
        end = _sending if group.rank == source else _taking

        def window(count: int, data: Any = data, end: Any = end) -> tuple[int, float]:
            done: tuple[int, float] = end(group, peer, data, count)
            return done

        found[str(size)] = _windows(
            group, peer, window, *_counts(size, window_bytes, STREAM_MESSAGES), windows, budget_s
        )
    return found if group.rank == target else {}


def _windows(
    group: Group,
    peer: int,
    window: Callable[[int], tuple[int, float]],
    messages: int,
    trial: int,
    most: int,
    budget_s: float,
) -> Samples:
    """As many windows, of as many messages, as a trial says that the budget has room for."""
    counted, took_us = window(trial)
    each_us = took_us / counted
    count = _agreed(group, peer, turns(each_us, messages, budget_s / LEAST_WINDOWS, LEAST_MESSAGES))
    number = _agreed(group, peer, turns(each_us * count, most, budget_s, LEAST_WINDOWS))
    return np.array([window(count) for _ in range(number)])


def messages_of(size: int, window_bytes: int, most: int) -> int:
    """Messages of a window: enough that what buffers hold at its start is little of it."""
    return max(LEAST_MESSAGES, min(most, window_bytes // size))


def _counts(size: int, window_bytes: int, most: int) -> tuple[int, int]:
    """Messages of a window at the most, and of its trial."""
    return messages_of(size, window_bytes, most), messages_of(size, TRIAL_BYTES, TRIAL_MESSAGES)


def _sending(group: Group, target: int, data: Any, count: int) -> tuple[int, float]:
    begun = time.perf_counter_ns()
    _each(group.send, data, target, count)
    group.recv(np.zeros(1, np.uint8), target, deadline_s=DEADLINE_S)
    return count - 1, (time.perf_counter_ns() - begun) / 1e3


def _taking(group: Group, source: int, data: Any, count: int) -> tuple[int, float]:
    group.recv(data, source, deadline_s=DEADLINE_S)
    begun = time.perf_counter_ns()
    _each(group.recv, data, source, count - 1)
    took = time.perf_counter_ns() - begun
    group.send(np.zeros(1, np.uint8), source, deadline_s=DEADLINE_S)
    return count - 1, took / 1e3


def _each(call: Callable[..., Any], data: Any, peer: int, count: int) -> None:
    """So many calls without a line of Python between them: their cost is in the message rate."""
    deque(map(call, repeat(data, count), repeat(peer)), maxlen=0)


def both(
    group: Group, peer: int, sizes: Sequence[int], window_bytes: int, windows: int, budget_s: float
) -> dict[str, Samples]:
    """Messages both ways at once: by size, rows of (messages, µs) of what arrived here.

    A message above 16 KiB goes in pieces of that size, sent and taken in turn, four ahead.
    """
    found = {}
    for size in sizes:
        pieces = [np.zeros(n, np.uint8) for n in _pieces(size)]

        def window(count: int, pieces: Any = pieces) -> tuple[int, float]:
            return _exchange(group, peer, pieces, count)

        found[str(size)] = _windows(
            group, peer, window, *_counts(size, window_bytes, TURN_MESSAGES), windows, budget_s
        )
    return found


def _pieces(size: int) -> list[int]:
    whole, rest = divmod(size, PIECE_BYTES)
    return [PIECE_BYTES] * whole + ([rest] if rest else [])


def _exchange(group: Group, peer: int, pieces: Sequence[Any], count: int) -> tuple[int, float]:
    """``count`` messages out and in; timed from the end of the first that arrives to that of the last."""
    out = [piece for _ in range(count) for piece in pieces]
    send, recv, first = group.send, group.recv, len(pieces)
    for piece in out[:AHEAD]:
        send(piece, peer)
    begun = time.perf_counter_ns()
    for i, piece in enumerate(out):
        recv(piece, peer)
        if i + 1 == first:
            begun = time.perf_counter_ns()
        if i + AHEAD < len(out):
            send(out[i + AHEAD], peer)
    return count - 1, (time.perf_counter_ns() - begun) / 1e3


def all_reduce(group: Group, sizes: Sequence[int], iterations: int, budget_s: float) -> dict[str, Samples]:
    """Times in µs, by size in bytes, of all-reducing float32 out of place; then one element: how many were wrong.

    The values are whole numbers whose sum float32 holds exactly, so that a wrong element is a wrong element.
    """
    found = {}
    for size in sizes:
        x, expected = summands(size // 4, group.rank, group.size)
        out, times = np.empty_like(x), []
        for _ in range(TRIAL):
            begun = time.perf_counter_ns()
            group.all_reduce(x, out=out, deadline_s=DEADLINE_S)
            times.append((time.perf_counter_ns() - begun) / 1e3)
        wanted = np.array([turns(float(np.median(times)), iterations, budget_s, LEAST_TURNS)], np.int32)
        count = int(group.all_reduce(wanted, op="min")[0])
        samples = np.empty(count + 1)
        out[:] = -1
        for i in range(count):
            begun = time.perf_counter_ns()
            group.all_reduce(x, out=out, deadline_s=DEADLINE_S)
            samples[i] = (time.perf_counter_ns() - begun) / 1e3
        samples[count] = np.count_nonzero(out != expected)
        found[str(size)] = samples
    return found


def summands(count: int, rank: int, ranks: int) -> tuple[Any, Any]:
    """A rank's float32 array, and the exact sum over all ranks."""
    numbers = np.arange(count, dtype=np.float32) % 1024
    return numbers + np.float32(rank), ranks * numbers + np.float32(ranks * (ranks - 1) // 2)


def _agreed(group: Group, peer: int, wanted: int) -> int:
    """What the lower rank wants, on both."""
    number = np.array([wanted], np.int64).view(np.uint8)
    if group.rank < peer:
        group.send(number, peer, deadline_s=DEADLINE_S)
    else:
        group.recv(number, peer, deadline_s=DEADLINE_S)
    return int(number.view(np.int64)[0])


LOOPS: dict[str, Callable[..., dict[str, Samples]]] = {
    "latency": latency,
    "stream": stream,
    "both": both,
    "all_reduce": all_reduce,
}
