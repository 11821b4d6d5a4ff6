"""What several rooms' tests share: one cluster of four engines, since connecting costs seconds, and small models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tbkit.errors import ClusterError
from tbkit.model.facts import ModelFacts

CLOSE_S = 5.0

# Rooms whose tests share what costs seconds to make: a group goes to one worker, the longest first. Notebooks and
# clusters are one: two models at once would be more ranks than cores, and each would wait for the other's time slices.
GROUPS = {
    "tests/browser/": "engines",
    "tests/notebooks/": "engines",
    "tests/cluster/": "engines",
    "tests/scale/": "engines",
    "tests/test_install.py": "install",
    "tests/kernels_c/": "sanitizers",
    "tests/fabric/": "fabric",
    "tests/rank/": "rank",
}
ALONE = {"alone", "rack"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--phase",
        choices=("together", "alone"),
        help="only the tests that may run beside others, or the rest",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this phase's tests, the longest groups first. What another phase runs is not deselected."""
    if phase := config.getoption("phase"):
        items[:] = [item for item in items if _alone(item) == (phase == "alone")]
        order = list(GROUPS.values())
        items.sort(
            key=lambda item: order.index(group) if (group := group_of(item.nodeid)) in order else len(order)
        )


def _alone(item: pytest.Item) -> bool:
    return any(mark.name in ALONE for mark in item.iter_markers())


def group_of(nodeid: str) -> str:
    """The group that a test goes with; most go by themselves."""
    return next((group for start, group in GROUPS.items() if nodeid.startswith(start)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups by :func:`group_of`: xdist's own mark for groups is not seen under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler


def pytest_deselected(items: list[pytest.Item]) -> None:
    """On a worker: keep what was deselected for the closing line, which xdist leaves it out of."""
    told = getattr(items[0].config, "workeroutput", None)
    if told is not None:
        told.setdefault("deselected", []).extend(item.nodeid for item in items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects, and deselects, the same tests: what one tells is counted once."""
    told = getattr(node, "workeroutput", {}).get("deselected", [])
    if told and (reporter := node.config.pluginmanager.get_plugin("terminalreporter")):
        reporter.stats["deselected"] = [SimpleNamespace(nodeid=name) for name in told]


def children() -> dict[int, psutil.Process]:
    """All processes under this one, by pid."""
    return {process.pid: process for process in psutil.Process().children(recursive=True)}


def running(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that still run after so long; one that nobody has waited for has ended."""
    end = time.monotonic() + within_s
    while left := [one for one in processes if _runs(one)]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def still_running() -> Callable[[list[psutil.Process], float], list[psutil.Process]]:
    """Which of these processes run on after so many seconds."""
    return running


def tiny(query_heads: int = 3, kv_heads: int = 1, layers: int = 2, **more: Any) -> ModelFacts:
    """Facts of a small model: 2 layers, 3 query heads of width 16, 101 words: little divides by 2."""
    values: dict[str, Any] = {
        "name": "tiny",
        "family": "llama",
        "layers": layers,
        "hidden": 16 * query_heads,
        "query_heads": query_heads,
        "kv_heads": kv_heads,
        "head_dim": 16,
        "mlp_width": 88,
        "vocab_rows": 101,
        "tied": True,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_traditional": True,
        "max_context": 512,
    }
    return ModelFacts(**(values | more))


@pytest.fixture(scope="session")
def facts_of() -> Callable[..., ModelFacts]:
    """The maker of small models' facts."""
    return tiny


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Any]:
    """Four local engines. At the end no process and no file of theirs may be left."""
    import tbkit as tb

    before = children()
    cluster = tb.connect(local=4)
    yield cluster
    started = [process for pid, process in children().items() if pid not in before]
    assert len(started) >= 9, "controller, four engines, four ranks"
    check_close(cluster)
    assert running(started, CLOSE_S) == []
    assert not cluster._folder.exists()


def check_close(cluster: Any) -> None:
    """Nothing has to be killed, closing twice is harmless, and a call on what is closed says so."""
    assert cluster.close() == [] and cluster.close() == []
    assert {row["engine"] for row in cluster.status()} == {"gone"} and "closed" in repr(cluster)
    with pytest.raises(ClusterError, match="closed"):
        cluster.ask([0], "ping")


@pytest.fixture
def cluster4(session_cluster: Any) -> Any:
    """The shared cluster, mended before the test if the one before had harmed it."""
    session_cluster.heal(say=lambda _: None)
    return session_cluster
