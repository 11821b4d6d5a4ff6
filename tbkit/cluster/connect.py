"""``connect``: from a count of local nodes to a usable cluster."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tbkit.cluster import carriers
from tbkit.cluster.carriers import Carrier
from tbkit.cluster.cluster import Cluster
from tbkit.cluster.engines import Engines
from tbkit.errors import ConnectFailed, TbkitError, UsageError

MOST_LOCAL = 16  # a fabric group takes no more ranks
CONNECT_DEADLINE_S = 120.0


def connect(
    *, local: int, policy: str = "auto", carrier: Carrier = "shm", deadline_s: float = CONNECT_DEADLINE_S
) -> Cluster:
    """Start ``local`` engines on this machine, one a node, each with its rank process.

    ``policy`` is how ranks wait for each other ("auto", "spin", "yield", "futex"); ``carrier`` what their frames
    go over: "shm" shared memory, "tcp" streams on the loopback address, "verbs" the false librdma that TBKIT_LIBRDMA
    names. Both are recorded factors. Raises UsageError for a count or carrier that cannot be, ConnectFailed when an
    engine or rank does not come up within ``deadline_s`` seconds; nothing is left behind then.
    """
    if isinstance(local, bool) or not isinstance(local, int) or not 1 <= local <= MOST_LOCAL:
        rule = f"a whole number of engines from 1 to {MOST_LOCAL}"
        raise UsageError("local", rule, repr(local), "Try connect(local=2), or --local 2")
    carriers.check(carrier)
    folder = Path(tempfile.mkdtemp(prefix="tbkit-"))  # mode 0700: logs and cluster files inside are 0644
    engines = Engines(folder, [f"local{i}" for i in range(local)])
    cluster = Cluster(engines, folder, policy=policy, carrier=carrier)
    try:
        engines.start(deadline_s)
        cluster.begin(deadline_s)
    except BaseException as error:
        cluster.closed = True
        engines.stop()
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, TbkitError | KeyboardInterrupt):
            raise
        cores = os.cpu_count() or 1
        remedy = f"{local} engines on {cores} cores; try fewer"
        raise ConnectFailed("cluster", f"comes up within {deadline_s:g} s", str(error), remedy) from error
    return cluster
