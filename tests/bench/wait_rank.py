"""One rank of the waiting benchmark: arm F of a decode step under a forced waiting policy.

``python -m tests.bench.wait_rank GROUP RANK SIZE POLICY`` prints the median step in microseconds.
"""

from __future__ import annotations

import os
import sys
from statistics import median

STEPS = 10
PROMPT = list(range(100, 124))


def main(name: str, rank: int, size: int, policy: str) -> float:
    """Load the rank's shard of the tensor-uneven plan, warm up, and time the steps of arm F."""
    from tbkit import fabric
    from tbkit.model.catalog import fetch, find
    from tbkit.plan import plan
    from tbkit.rank.sharded.arms import Bench
    from tbkit.rank.sharded.collectives import FabricLinks
    from tbkit.rank.sharded.shard import Shard
    from tbkit.rank.sharded.weights import GgufWeights

    facts = find("smollm2-135m-instruct").facts
    source = GgufWeights(str(fetch(facts.name)))
    group = fabric.join(name, rank, size, deadline_s=60.0, policy=policy)  # type: ignore[arg-type]
    links = FabricLinks(group)
    shard = Shard(facts, plan(facts, size)["tensor-uneven"], rank, source, links)
    shard.forward(PROMPT)
    bench = Bench(shard, links, group, len(PROMPT), list(range(200, 200 + STEPS)))
    bench.record()
    bench.run("F")
    return median(bench.run("F")["step_us"])


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
