"""From a count to a cluster and back: who is there, who may speak to it, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import tbkit as tb
from tbkit.cluster import cluster as module
from tbkit.errors import ClusterError, ConnectFailed, UsageError

SUM = "print(fabric.all_reduce(np.ones(4))[0])"


@pytest.mark.parametrize("local", [0, -1, 17, 1000, "2", 2.0, True, None])
def test_a_count_that_cannot_be_is_refused_before_anything_starts(local: Any) -> None:
    """UsageError with the rule and the remedy, at once."""
    connect = tb.connect
    begun = time.monotonic()
    with pytest.raises(UsageError, match="from 1 to 16") as caught:
        connect(local=local)

    assert time.monotonic() - begun < 1.0 and "--local 2" in str(caught.value)


@pytest.mark.cluster
def test_status_has_a_row_a_node_in_rank_order(cluster4: Any) -> None:
    """Node, rank, engine and rank process with their pids; each is a process of its own."""
    rows = cluster4.status()

    assert [(row["node"], row["rank"]) for row in rows] == [(f"local{i}", i) for i in range(4)]
    assert {(row["engine"], row["rank_process"], row["reality"]) for row in rows} == {("up", "up", "local")}
    pids = [row[key] for row in rows for key in ("engine_pid", "rank_pid")]
    assert len(set(pids)) == 8 and os.getpid() not in pids
    assert cluster4.size == 4 and "4 nodes" in str(cluster4) and "local" in repr(cluster4)


@pytest.mark.cluster
def test_every_file_lies_behind_a_private_folder(cluster4: Any) -> None:
    """Keys, logs and the ranks' files stand in one folder of mode 0700 that belongs to the user."""
    folder: Path = cluster4._folder

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == os.getuid()
    assert list(folder.glob("security/*.json")) and (folder / "files").is_dir()
    assert stat.S_IMODE((folder / "files").stat().st_mode) == 0o700


@pytest.mark.cluster
def test_only_who_has_the_key_may_connect(cluster4: Any, tmp_path: Path) -> None:
    """CurveZMQ is on: the connection file holds the server's key, and a client without it is not let in."""
    import ipyparallel

    (path,) = cluster4._folder.glob("security/*client.json")
    facts = json.loads(path.read_text())
    keys = [key for key in facts if key.startswith("curve")]
    assert "curve_serverkey" in keys and len(facts["curve_serverkey"]) == 40
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({key: value for key, value in facts.items() if key not in keys}))
    with pytest.raises(Exception, match=r"(?i)time|connect|curve"):
        ipyparallel.Client(str(bare), timeout=1.5).close()
    with ipyparallel.Client(str(path), timeout=10) as let_in:
        assert len(let_in.ids) == 4


@pytest.mark.cluster
def test_a_cell_on_all_engines_needs_no_import(cluster4: Any) -> None:
    """fabric, np, mx, node, rank and size stand in every engine's namespace, as %px finds it."""
    view = cluster4.client[:]
    view.block = True

    assert [text.strip() for text in view.execute(SUM, silent=False).stdout] == ["4.0"] * 4
    names = view.execute(
        "print(node, rank, size, mx.array([1, 2]).sum().item(), fabric)", silent=False
    ).stdout
    told = sorted(text.split(" ", 4)[:4] for text in names)
    assert told == [[f"local{i}", str(i), "4", "3"] for i in range(4)]


@pytest.mark.cluster
def test_a_call_on_some_engines_ends_and_names_the_absent(cluster4: Any) -> None:
    """It ends at its deadline with the ranks that did not come; after heal the fabric works again."""
    import ipyparallel

    some = cluster4.client[[cluster4._engines.ids[node] for node in ("local0", "local2")]]
    begun = time.monotonic()
    with pytest.raises(ipyparallel.error.RemoteError) as caught:
        some.execute("fabric.barrier(deadline_s=1.0)", silent=False).get(timeout=20)
    took = time.monotonic() - begun

    text = str(caught.value)
    assert 0.9 < took < 5.0
    assert "FabricTimeout" in text and "1 and 3" in text.replace("[1, 3]", "1 and 3").replace(
        "1, 3", "1 and 3"
    )
    cluster4.heal()
    assert [x.strip() for x in cluster4.client[:].execute(SUM, silent=False, block=True).stdout] == [
        "4.0"
    ] * 4


@pytest.mark.cluster
def test_an_unknown_verb_is_the_users_error_and_harms_nothing(cluster4: Any) -> None:
    """The rank's UsageError reaches the caller as it is."""
    with pytest.raises(UsageError, match="knows the verb"):
        cluster4.ask([0], "fly")
    assert cluster4.ask(range(4), "ping")[3]["node"] == "local3"


@pytest.mark.cluster
def test_a_large_file_of_a_rank_is_fetched_in_pieces(cluster4: Any) -> None:
    """A file of several MiB arrives whole; one that is not there is an error."""
    path = cluster4._folder / "files" / "large.bin"
    path.write_bytes(os.urandom(3 * (1 << 20) + 17))
    assert cluster4.fetch(1, str(path)) == path.read_bytes()
    path.write_bytes(b"")
    assert cluster4.fetch(1, str(path)) == b""
    path.unlink()
    with pytest.raises(ClusterError, match=r"large\.bin"):
        cluster4.fetch(1, str(path))


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("when", "what", "words"),
    [
        (
            "'TBKIT_NODE' in os.environ",
            "sys.exit('not today')",
            r"local0 ended: exit code 1, (SystemExit: )?not today",
        ),
        ("'TBKIT_NODE' in os.environ", "os._exit(3)", r"local0 ended: exit code 3, no output"),
        (
            "'TBKIT_NODE' in os.environ",
            "os.kill(os.getpid(), 9)",
            r"local0 ended: killed by SIGKILL, no output",
        ),
        ("'tbkit.rank.process' in sys.orig_argv", "sys.exit('not today')", r"local0: rank process"),
    ],
)
def test_a_cluster_that_cannot_come_up_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, still_running: Any, when: str, what: str, words: str
) -> None:
    """An engine or a rank whose Python fails: ConnectFailed that names it, long before the deadline; nothing stays."""
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(f"import os, sys\nif {when}: {what}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    begun = time.monotonic()
    with pytest.raises(ConnectFailed, match=words):
        tb.connect(local=1, deadline_s=110.0)
    assert time.monotonic() - begun < 60.0
    started = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    assert still_running(started, 2.0) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tbkit-")] == []
    assert [one for one in module._open if not one.closed and one._folder.parent == tmp_path] == []
