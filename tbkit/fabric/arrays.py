"""Arrays that the module is given. Results where no ``out`` is: numpy for numpy, lists and scalars; mlx for mlx."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def _is_mlx(x: Any) -> bool:
    core = sys.modules.get("mlx.core")
    return core is not None and isinstance(x, core.array)


def _dense(x: Any) -> Any:
    """``x`` as an array with the buffer protocol; what has it already is passed on, dense or not."""
    try:
        memoryview(x).release()
    except TypeError:
        return np.asarray(x)
    return x if hasattr(x, "shape") else np.asarray(x)


def _empty(x: Any, shape: tuple[int, ...]) -> Any:
    if not _is_mlx(x):
        return np.empty(shape, dtype=x.dtype)
    mx = sys.modules["mlx.core"]
    fresh = mx.zeros(shape, dtype=x.dtype)
    mx.eval(fresh)
    return fresh


def reduced(x: Any) -> tuple[Any, Any]:
    """``(x as an array, a new array of its shape and dtype)``."""
    array = _dense(x)
    return array, _empty(array, tuple(array.shape))


def registered(x: Any) -> Any:
    """``x``, or for mlx another array of the same memory: an in-place operation on ``x`` would give that memory to
    its result, which then changes under whoever reads it."""
    return x.view(x.dtype) if _is_mlx(x) else x


def gathered(x: Any, size: int) -> tuple[Any, Any]:
    """``(x as an array, a new array of shape (size, *x.shape))``."""
    array = _dense(x)
    return array, _empty(array, (size, *array.shape))
