"""What dies is named within seconds, and the next call works under the same rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tbkit.errors import EngineDied, RankDied

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
SUM = "print(fabric.all_reduce(np.ones(4))[0])"
WAIT = {"name": "all_reduce", "shape": [4], "dtype": "float32", "deadline_s": 30.0, "options": {}}
CHILD = """
import sys, time
import tbkit as tb
from tbkit.errors import Interrupted
cluster = tb.connect(local=2)
print(cluster._folder, flush=True)
model = tb.shard(cluster, "tensor-uneven")
print("ready", flush=True)
try:
    model.generate("Once upon a time", 4000)
except Interrupted as error:
    print(f"\\ninterrupted: {error}", flush=True)
print("after:" + model.generate("The capital of France is", 4, stream=False).text, flush=True)
sys.stdin.read()
"""


def during(action: Any, seconds: float = 0.5) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def killed_in_a_collective(cluster: Any, key: str) -> tuple[Exception, float]:
    """Ranks 0 to 2 wait for rank 3 in an all-reduce; rank 1's process or engine is killed. The error, and how long."""
    victim = cluster.status()[1][key]
    moment: list[float] = []
    timer = during(lambda: (moment.append(time.monotonic()), os.kill(victim, signal.SIGKILL)))
    with pytest.raises((RankDied, EngineDied)) as caught:
        cluster.ask([0, 1, 2], "collective", WAIT, deadline_s=40.0)
    timer.join()
    return caught.value, time.monotonic() - moment[0]


def sums(cluster: Any) -> list[str]:
    view = cluster.client[[cluster._engines.ids[node] for node in cluster.nodes]]
    return [x.strip() for x in view.execute(SUM, silent=False, block=True).stdout]


def test_a_killed_rank_is_named_and_replaced_under_its_rank(cluster4: Any) -> None:
    """SIGKILL in mid-collective: RankDied with node, signal and operation in < 5 s; heal says what it replaced."""
    before = cluster4.status()
    error, took = killed_in_a_collective(cluster4, "rank_pid")
    assert isinstance(error, RankDied) and took < 5.0
    assert "local1" in str(error) and "SIGKILL" in str(error) and "all_reduce" in str(error)
    assert [row["rank_process"] for row in cluster4.status()] == ["up", "gone", "up", "up"]

    said: list[str] = []
    cluster4.heal(say=said.append)
    after = cluster4.status()
    assert len(said) == 1 and "local1" in said[0] and "rank 1" in said[0]
    assert after[1]["engine_pid"] == before[1]["engine_pid"] and after[1]["rank_pid"] != before[1]["rank_pid"]
    assert [row["rank_pid"] for row in (after[0], after[2], after[3])] == [
        row["rank_pid"] for row in (before[0], before[2], before[3])
    ]
    assert sums(cluster4) == ["4.0"] * 4


def test_a_killed_engine_is_named_and_replaced_under_its_rank(cluster4: Any) -> None:
    """SIGKILL of an engine: EngineDied with its node in < 5 s; a new engine, another id, the same rank."""
    before, ids = cluster4.status(), dict(cluster4._engines.ids)
    error, took = killed_in_a_collective(cluster4, "engine_pid")
    assert isinstance(error, EngineDied) and "local1" in str(error) and took < 5.0

    said: list[str] = []
    cluster4.heal(say=said.append)
    after = cluster4.status()
    assert len(said) == 1 and "new engine under rank 1" in said[0]
    assert after[1]["engine_pid"] != before[1]["engine_pid"] and after[1]["rank"] == 1
    assert cluster4._engines.ids["local1"] not in ids.values()
    assert (
        not psutil.pid_exists(before[1]["rank_pid"])
        or psutil.Process(before[1]["rank_pid"]).status() == "zombie"
    )
    assert sums(cluster4) == ["4.0"] * 4


def test_a_model_is_loaded_again_after_a_death(cluster4: Any) -> None:
    """The rank dies between two calls of a model; the next call brings rank and shard back and answers."""
    import tbkit as tb

    model = tb.shard(cluster4, tb.plan("smollm2-135m-instruct", 2)["tensor-uneven"])
    text = model.generate("The capital of France is", 3, stream=False).text
    os.kill(cluster4.status()[0]["rank_pid"], signal.SIGKILL)
    with pytest.raises(RankDied, match="local0"):
        model.call("sentinel")

    assert model.generate("The capital of France is", 3, stream=False).text == text


@pytest.fixture(scope="module")
def notebook() -> Iterator[subprocess.Popen[str]]:
    """A process of a user's own with a cluster of two, in the middle of a long text."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", CHILD], env=environment, text=True, **pipes)
    yield child
    child.kill()
    child.communicate(timeout=10)


def line_with(child: subprocess.Popen[str], mark: str) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if mark in line:
            return line.strip()
    raise AssertionError(f"the child ended before it said {mark!r}")


@pytest.mark.slow
def test_ctrl_c_ends_a_long_run_and_the_cluster_stays(notebook: subprocess.Popen[str]) -> None:
    """SIGINT to the user's process: Interrupted in under 5 s; the next call of the same model answers."""
    notebook.folder = Path(line_with(notebook, "tbkit-"))  # type: ignore[attr-defined]
    line_with(notebook, "ready")
    assert notebook.stdout is not None and notebook.stdout.read(1), "the text streams"
    begun = time.monotonic()
    notebook.send_signal(signal.SIGINT)
    assert "Ctrl-C" in line_with(notebook, "interrupted:")
    assert time.monotonic() - begun < 5.0

    assert "Paris" in line_with(notebook, "after:")


@pytest.mark.slow
def test_nothing_outlives_a_user_who_is_killed(notebook: subprocess.Popen[str], still_running: Any) -> None:
    """SIGKILL of the user's process: ranks, engines, nannies, controller and the private folder go with it."""
    started = psutil.Process(notebook.pid).children(recursive=True)
    assert len(started) >= 5
    notebook.kill()
    notebook.wait(5)

    assert still_running(started, 8.0) == []
    assert not notebook.folder.exists()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_controller_without_engines_ends_with_its_user_too(tmp_path: Path, still_running: Any) -> None:
    """SIGKILL of a user who is still connecting, or already closing: the controller and the folder go by themselves."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    code = "import sys\nfrom pathlib import Path\nfrom tbkit.cluster.engines import Engines\n"
    code += "Engines(Path(sys.argv[1]), []).start(30.0)\nprint('up', flush=True)\nsys.stdin.read()\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], env=environment, text=True, **pipes)
    try:
        line_with(child, "up")
        started = psutil.Process(child.pid).children(recursive=True)
    finally:
        child.kill()
        child.communicate(timeout=10)

    assert started and still_running(started, 8.0) == []
    assert not folder.exists()
