"""``fabric`` in an engine's namespace: the engine's handle on its rank process, same calls as the group itself."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tbkit.errors import BufferRejected

if TYPE_CHECKING:
    from tbkit.rank.supervisor import Supervisor

DEADLINE_S = 20.0
_TAKEN = ("float16", "float32", "float64", "int32")


class Fabric:
    """Collectives over all nodes of the cluster; the arrays go to the rank through shared memory.

    Every call takes ``deadline_s`` (seconds; the default is this object's ``deadline_s``) and raises
    FabricTimeout, which names the absent ranks, when the others do not come in time.
    """

    def __init__(self, supervisor: Supervisor, rank: int, size: int) -> None:
        self._supervisor = supervisor
        self.rank, self.size = rank, size
        self.deadline_s = DEADLINE_S

    def __repr__(self) -> str:
        return f"<fabric: rank {self.rank} of {self.size} on {self._supervisor.node}>"

    def all_reduce(self, x: Any, op: str = "sum", *, deadline_s: float | None = None) -> Any:
        """The sum, max or min of x over the ranks; a new array of x's shape and type."""
        return self._collective("all_reduce", x, deadline_s, op=op)

    def all_gather(self, x: Any, *, deadline_s: float | None = None) -> Any:
        """The x of every rank, shape (size, *x.shape)."""
        return self._collective("all_gather", x, deadline_s)

    def broadcast(self, x: Any, root: int = 0, *, deadline_s: float | None = None) -> Any:
        """The x of rank ``root`` on every rank."""
        return self._collective("broadcast", x, deadline_s, root=root)

    def send(self, x: Any, dst: int, *, deadline_s: float | None = None) -> None:
        """Send x to a rank that calls ``recv`` with an array of the same shape and type."""
        self._collective("send", x, deadline_s, dst=dst)

    def recv(self, like: Any, src: int, *, deadline_s: float | None = None) -> Any:
        """An array of the shape and type of ``like`` from a rank."""
        return self._collective("recv", like, deadline_s, src=src)

    def barrier(self, *, deadline_s: float | None = None) -> None:
        """Return when every rank has called it."""
        self._ask("barrier", [], "float32", deadline_s, {})

    def _ask(
        self, name: str, shape: list[int], dtype: str, deadline_s: float | None, options: dict[str, Any]
    ) -> Any:
        wait = self.deadline_s if deadline_s is None else deadline_s
        args = {"name": name, "shape": shape, "dtype": dtype, "deadline_s": wait, "options": options}
        return self._supervisor.call("collective", args, wait + 5.0)

    def _collective(self, name: str, x: Any, deadline_s: float | None, **options: Any) -> Any:
        array, dtype, from_mlx = _host_array(x)
        self._supervisor.scratch.array(array.shape, dtype)[...] = array
        shape = self._ask(name, list(array.shape), dtype, deadline_s, options)
        result = self._supervisor.scratch.array(shape, dtype).copy()
        return _mlx_array(result, dtype) if from_mlx else result


def _host_array(x: Any) -> tuple[np.ndarray[Any, Any], str, bool]:
    """x as a dense numpy array, the name of its type, and whether it came from mlx."""
    if type(x).__module__.startswith("mlx"):
        import mlx.core as mx

        if x.dtype == mx.bfloat16:
            return np.array(x.view(mx.uint16)), "bfloat16", True
        array = np.array(x)
    else:
        array = np.asarray(x)
    if array.dtype.name not in _TAKEN:
        rule = f"one of {', '.join(_TAKEN)}, or bfloat16 in mlx"
        raise BufferRejected("array", rule, array.dtype.name, "Convert it with .astype")
    return array, array.dtype.name, type(x).__module__.startswith("mlx")


def _mlx_array(array: np.ndarray[Any, Any], dtype: str) -> Any:
    import mlx.core as mx

    made = mx.array(array).view(mx.bfloat16) if dtype == "bfloat16" else mx.array(array)
    mx.eval(made)
    return made


class Lazy(ModuleType):
    """A module that is imported when one of its names is first asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def install(supervisor: Supervisor, node: str, rank: int, size: int) -> None:
    """Put ``node``, ``rank``, ``size``, ``fabric``, ``np`` and a lazy ``mx`` into the engine's namespace."""
    from IPython import get_ipython

    shell = get_ipython()
    space = shell.user_ns if shell is not None else sys.modules["__main__"].__dict__
    handle = Fabric(supervisor, rank, size)
    space.update(node=node, rank=rank, size=size, fabric=handle, np=np, mx=Lazy("mlx.core"))
