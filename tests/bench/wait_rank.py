"""One rank of the waiting benchmark: arm F of a decode step under each waiting policy in turn.

``python -m tests.bench.wait_rank GROUP RANK SIZE POLICY,POLICY`` prints a JSON object: median step, µs, by policy.
"""

from __future__ import annotations

import json
import os
import sys
from statistics import median

STEPS = 10
PROMPT = list(range(100, 124))
TOKENS = list(range(200, 200 + STEPS))


def main(name: str, rank: int, size: int, policies: list[str]) -> dict[str, float]:
    """Load the rank's shard of the tensor-uneven plan once, then time it over a new group a policy."""
    from tbkit import fabric
    from tbkit.model.catalog import fetch, find
    from tbkit.plan import plan
    from tbkit.rank.sharded.arms import Bench
    from tbkit.rank.sharded.collectives import Alone, FabricLinks
    from tbkit.rank.sharded.shard import Shard
    from tbkit.rank.sharded.weights import GgufWeights

    facts = find("smollm2-135m-instruct").facts
    source = GgufWeights(str(fetch(facts.name)))
    shard = Shard(facts, plan(facts, size)["tensor-uneven"], rank, source, Alone())
    times = {}
    for policy in policies:
        group = fabric.join(f"{name}-{policy}", rank, size, deadline_s=60.0, policy=policy)  # type: ignore[arg-type]
        links = FabricLinks(group)
        shard.wire.set(links)
        shard.forget()
        shard.forward(PROMPT)
        bench = Bench(shard, links, group, len(PROMPT), TOKENS)
        bench.record()
        times[policy] = median(bench.run("F")["step_us"])
        group.close()
    return times


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))))
