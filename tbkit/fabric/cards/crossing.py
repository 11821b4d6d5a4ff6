"""What leaving the graph costs: a chain of small products, evaluated at once and evaluated piece by piece.

An eager collective cuts the graph at its place: what stands before it is evaluated, the processor reads the buffer, and
a new graph begins. On the GPU that is the fence between it and the CPU; on the CPU it is the cut alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WARM_UP = 3


def device() -> str:
    """Where MLX runs: ``cpu`` or ``gpu``."""
    import mlx.core as mx

    return "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"


def crossing(widths: Sequence[int], pieces: int, repeats: int) -> dict[str, npt.NDArray[np.float64]]:
    """By width, µs of shape (repeats, 2): the ``pieces`` products whole, and cut after each, in turns."""
    found = {}
    for width in widths:
        x, weights = _operands(width)
        for _ in range(WARM_UP):
            _whole(x, weights, pieces)
            _cut(x, weights, pieces)
        found[str(width)] = np.array(
            [(_whole(x, weights, pieces), _cut(x, weights, pieces)) for _ in range(repeats)]
        )
    return found


def _operands(width: int) -> tuple[Any, Any]:
    import mlx.core as mx

    x, weights = mx.ones((1, width)), mx.ones((width, width)) / width
    mx.eval(x, weights)
    return x, weights


def _whole(x: Any, weights: Any, pieces: int) -> float:
    import mlx.core as mx

    begun = time.perf_counter_ns()
    for _ in range(pieces):
        x = x @ weights
    mx.eval(x)
    memoryview(x).release()
    return (time.perf_counter_ns() - begun) / 1e3


def _cut(x: Any, weights: Any, pieces: int) -> float:
    import mlx.core as mx

    begun = time.perf_counter_ns()
    for _ in range(pieces):
        x = x @ weights
        mx.eval(x)
        memoryview(x).release()
    return (time.perf_counter_ns() - begun) / 1e3
