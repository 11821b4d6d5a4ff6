"""tbkit: a Jupyter laboratory for clusters of Macs joined by RDMA over Thunderbolt 5.

::

    import tbkit as tb
    cl = tb.connect(local=2)
    plans = tb.plan("smollm2-135m-instruct", cl)
    run = tb.scale(cl, "decode", on=(1, 2))
    why = tb.explain(run)

This is the one list of public names. It is lazy: importing tbkit loads neither mlx nor plotly nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "connect": "tbkit.cluster",
    "plan": "tbkit.plan",
    "shard": "tbkit.cluster",
    "scale": "tbkit.scale",
    "explain": "tbkit.explain",
    "quickstart": "tbkit.main_job",
    "load_ipython_extension": "tbkit.magics",
    "unload_ipython_extension": "tbkit.magics",
} | dict.fromkeys(
    (
        "TbkitError",
        "UsageError",
        "InputError",
        "ClusterError",
        "ConnectFailed",
        "EngineDied",
        "RankDied",
        "DeadlinePassed",
        "FabricError",
        "LinkFailed",
        "PeerDied",
        "PeerSilent",
        "FabricTimeout",
        "CorruptFrame",
        "BufferRejected",
        "Interrupted",
        "PlanError",
        "RunError",
        "NotApplied",
        "RunCutShort",
    ),
    "tbkit.errors",
)

__all__ = ["__version__", *_WHERE]  # noqa: PLE0604

_ROOMS = ("plan", "scale", "explain")  # rooms that are called like their own main function


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tbkit' has no attribute {name!r}")
    module = import_module(_WHERE[name])
    return module if name in _ROOMS else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
