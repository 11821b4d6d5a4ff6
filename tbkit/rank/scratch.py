"""One block of memory shared by an engine and its rank, for the arrays of user calls."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


class Scratch:
    """A file without a name, mapped by both sides; it grows to the largest array asked for."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _unnamed_file() if fd is None else fd
        self._map: mmap.mmap | None = None

    def array(self, shape: tuple[int, ...] | list[int], dtype: str) -> np.ndarray[Any, Any]:
        """A writable view of the first bytes as an array; bfloat16 comes as uint16."""
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        count = math.prod(shape)
        self._reach(max(1, count * kind.itemsize))
        assert self._map is not None, "the map was made just now"
        return np.frombuffer(self._map, dtype=kind, count=count).reshape(shape)

    def _reach(self, size: int) -> None:
        if self._map is not None and len(self._map) >= size:
            return
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tbkit-scratch", 0)
    handle, path = tempfile.mkstemp(prefix="tbkit-")
    Path(path).unlink()
    return handle
