"""What the waiting policy costs a decode step: ``auto`` against the policies it chooses from, on two cores."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from tbkit import __version__
from tests.bench.table import against

LAUNCHES = 7
DEADLINE_S = 120.0


def launch_us(ranks: int, policies: Sequence[str]) -> dict[str, float]:
    """The slowest rank's median step under each policy, in the order given, of one launch."""
    group = f"bench-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "tests.bench.wait_rank", group]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), ",".join(policies)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as engines have: the scheduler shares the cores out by session
        )
        for rank in range(ranks)
    ]
    try:
        answers = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"bench_wait: a rank failed with {ranks} ranks, policies {', '.join(policies)}")
    each = [json.loads(answer) for answer in answers]
    return {policy: max(times[policy] for times in each) for policy in policies}


def launches_us(ranks: int, policies: tuple[str, ...]) -> dict[str, list[float]]:
    """Times by policy; every launch runs all policies, the order turned each time."""
    times: dict[str, list[float]] = {policy: [] for policy in policies}
    for turn in range(LAUNCHES):
        first = turn % len(policies)
        for policy, us in launch_us(ranks, policies[first:] + policies[:first]).items():
            times[policy].append(us)
    return times


def measure() -> list[dict[str, Any]]:
    """Two rows: 2 ranks against pure spin, 4 ranks against the best of the three pure policies."""
    what = f"a step's waiting, arm F, {{}} ranks on {os.cpu_count()} cores, policy auto"
    two = launches_us(2, ("auto", "spin"))
    four = launches_us(4, ("auto", "spin", "yield", "futex"))
    best = min(("spin", "yield", "futex"), key=lambda policy: geometric_mean(four[policy]))
    rows = []
    for ranks, times, peer, bar in ((2, two, "spin", "<= 1.05"), (4, four, best, "<= 1.10")):
        named = (f"policy {peer}", __version__)
        command = f"python -m tests.bench.wait_rank GROUP RANK {ranks} POLICIES"
        rows.append(against(what.format(ranks), "us", times["auto"], named, times[peer], bar, command))
    return rows
