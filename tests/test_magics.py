"""The magics: thin, silent, tidy; errors are one line; what they return is what Python returns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).resolve().parents[1]
MAGICS = ("tb", "tbcluster", "tbexplain", "tbplan", "tbscale", "tbshard")
HEAVY = ("mlx", "plotly", "pandas", "ipyparallel", "scipy")
DEADLINE_S = 90


@pytest.fixture(scope="module")
def shell():
    """An IPython of this process, made once: it is a singleton."""
    made = InteractiveShell.instance()
    yield made
    InteractiveShell.clear_instance()


@pytest.fixture
def ip(shell, capsys):
    """The shell with the extension; ``ip.run(cell)`` gives the cell's value, error and printed text."""
    shell.run_line_magic("load_ext", "tbkit")

    def run(cell):
        capsys.readouterr()
        result = shell.run_cell(cell)
        return SimpleNamespace(
            value=result.result,
            error=result.error_in_exec or result.error_before_exec,
            text="".join(capsys.readouterr()),
        )

    yield SimpleNamespace(run=run, shell=shell)
    shell.run_line_magic("unload_ext", "tbkit")


def line_magics(shell):
    """Names of our line magics that are registered."""
    return sorted(name for name in shell.magics_manager.magics["line"] if name.startswith("tb"))


def completions(shell, line, jedi):
    """What Tab offers at the end of a line."""
    shell.Completer.use_jedi = jedi
    with provisionalcompleter():
        return [one.text for one in shell.Completer.completions(line, len(line))]


def test_loading_is_silent_and_light():
    """%load_ext in a fresh IPython prints nothing, touches no file, and loads nothing heavy; twice is harmless."""
    code = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell as S; ip = S.instance();"
        "import tbkit; before = set(sys.modules);"
        "ip.run_line_magic('load_ext', 'tbkit'); tbkit.load_ipython_extension(ip);"
        f"print([m for m in {HEAVY!r} if m in sys.modules], len(ip.events.callbacks['pre_run_cell']))"
    )
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout.split() == ["[]", "1"]
    assert done.stderr == ""


def test_unloading_undoes_it(ip):
    """Magics, hook and completers are gone, and loading again brings each back once."""
    hooks = ip.shell.events.callbacks["pre_run_cell"]
    assert line_magics(ip.shell) == list(MAGICS)
    loaded = len(hooks)
    ip.shell.run_line_magic("unload_ext", "tbkit")
    assert line_magics(ip.shell) == []
    assert len(hooks) == loaded - 1
    assert "connect" not in completions(ip.shell, "%tbcluster con", jedi=False)
    ip.shell.run_line_magic("load_ext", "tbkit")
    assert line_magics(ip.shell) == list(MAGICS)
    assert len(hooks) == loaded


WRONG_USE = {
    "a verb that is not there": ("%tbcluster conect --local 2", "connect?"),
    "a verb that is like none": ("%tbcluster xyz", "connect, status, links, disconnect"),
    "a flag that is not there": ("%tbcluster connect --locl 2", "--local?"),
    "a choice that is not there": ("%tbcluster connect --local 2 --policy spim", "spin?"),
    "no engine": ("%tbcluster connect --local 0", "from 1 to 16"),
    "a thousand engines": ("%tbcluster connect --local 1000", "from 1 to 16"),
    "engines in words": ("%tbcluster connect --local two", "two"),
    "no machines": ("%tbcluster connect", "--local 2"),
    "nothing connected": ("%tbcluster status", "%tbcluster connect --local 2"),
    "an open quote": ("%tbcluster connect --local '2", "quotation"),
    "help for no verb": ("%tbcluster help conect", "connect?"),
    "a verb of the command line": ("%tb plann", "plan?"),
    "a model that is not there": ("%tbplan smollm --local 2", "smollm2-135m-instruct"),
    "a count where memory is meant": ("%tbplan --nodes 2", "--local 2"),
    "a workload that is not there": ("%tbscale decod", "decode?"),
    "no workload": ("%tbscale", "workload"),
    "a count that is no number": ("%tbscale decode --on 1,2,x", "1,2,x"),
    "scaling without a cluster": ("%tbscale decode", "%tbcluster connect --local 2"),
    "links without a cluster": ("%tbcluster links lat", "%tbcluster connect --local 2"),
    "a measurement that is not there": ("%tbcluster links lta", "lat?"),
    "sharding without a cluster": ("%tbshard", "%tbcluster connect --local 2"),
    "a run that is not there": ("%tbexplain nosuch", "nosuch"),
}


@pytest.mark.parametrize("cell, said", WRONG_USE.values(), ids=WRONG_USE)
def test_wrong_use_is_one_line(ip, cell, said):
    """A UsageError of one line with the nearest choice or the remedy; no traceback, no exit."""
    got = ip.run(cell)
    assert isinstance(got.error, UsageError)
    assert "Traceback" not in got.text
    (line,) = (line for line in got.text.splitlines() if line.strip())
    assert line.startswith("UsageError: ")
    assert said in line


def test_the_question_mark_shows_every_verb(ip):
    """``%tbcluster?`` has each verb with an example that parses."""
    shown = ip.shell.object_inspect("%tbcluster")["docstring"]
    for example in ("connect --local 2", "status", "disconnect", "help connect"):
        assert f"%tbcluster {example}" in shown


def test_help_shows_a_verb_and_its_flags(ip):
    """``help VERB`` and ``VERB --help`` print the flags and an example, and raise nothing."""
    for cell in ("%tbcluster help connect", "%tbcluster connect --help"):
        got = ip.run(cell)
        assert got.error is None
        assert "--local" in got.text
        assert "example: %tbcluster connect --local 2" in got.text


@pytest.mark.parametrize("cell", ["%tbcluster", "%tbcluster help", "%tb", "%tb help"])
def test_a_bare_magic_lists_its_verbs(ip, cell):
    """Without a verb, each verb stands with an example and a word on what it does."""
    got = ip.run(cell)
    assert got.error is None
    assert len(got.text.splitlines()) >= 4
    assert "help VERB" in got.text


def test_it_returns_what_python_returns(ip):
    """A magic gives the object itself, also into a variable, with ``$x`` and ``{x}`` filled in."""
    ip.run("n = 2")
    got = ip.run("plans = %tbplan --local {n}\nplans")
    assert type(got.value).__name__ == "Plans"
    assert got.value.nodes == 2
    assert ip.run("%tbplan --local $n").value.nodes == 2


def test_a_semicolon_silences(ip):
    """``;`` at the end hides the value and is no part of the arguments."""
    got = ip.run("%tbplan --local 2;")
    assert got.error is None
    assert got.value is None
    assert got.text == ""


def test_disconnecting_nothing_is_fine(ip):
    """disconnect without a cluster says so and raises nothing."""
    got = ip.run("%tbcluster disconnect")
    assert got.error is None
    assert got.text == "not connected\n"


@pytest.mark.parametrize("jedi", [False, True], ids=["plain", "jedi"])
@pytest.mark.parametrize(
    "line, offered",
    [
        ("%tbcluster ", {"connect", "status", "links", "disconnect", "help"}),
        ("tbcluster ", {"connect", "status", "links", "disconnect", "help"}),
        ("%tbcluster dis", {"disconnect"}),
        ("%tbcluster connect ", {"--help", "--local", "--policy", "--carrier"}),
        ("%tbcluster connect --lo", {"--local"}),
        ("%tbcluster connect --local 2 --p", {"--policy"}),
        ("%tb q", {"quickstart"}),
        ("%tb plan --no", {"--nodes"}),
        ("%tbscale decode --lo", {"--local", "--loads"}),
        ("%tbscale de", {"decode"}),
        ("%tbcluster connect --policy ", {"auto", "spin", "yield", "futex"}),
        ("%tbcluster help ", {"connect", "status", "links", "disconnect"}),
        ("%tbcluster links bi", {"bibw"}),
        ("%tbcluster links lat --c", {"--carrier"}),
        ("%tbplan --model smol", {"smollm2-135m-instruct"}),
        ("%tbexplain la", {"last"}),
        ("cl = %tbcluster con", {"connect"}),
    ],
)
def test_tab_completes_verbs_then_flags(ip, line, offered, jedi):
    """Tab offers our words alone: no Python keyword or name leaks in, even before the first letter."""
    assert set(completions(ip.shell, line, jedi)) == offered


def test_other_lines_complete_as_before(ip):
    """A line without one of our magics is none of our business."""
    ip.shell.user_ns["tbplan_of_mine"] = 1
    assert "tbplan_of_mine" in completions(ip.shell, "tbplan_of", jedi=False)
    assert "%tbplan" in completions(ip.shell, "%tbpl", jedi=False)


@pytest.mark.alone  # beside other work %px once printed nothing of what its engine had said
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_cluster_from_connect_to_disconnect(ip):
    """connect returns the cluster; again says so and does nothing; %px finds fabric and np; disconnect ends all."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    got = ip.run("cl = %tbcluster connect --local 1\ncl")
    cluster = got.value
    assert got.error is None
    assert (type(cluster).__name__, cluster.size) == ("Cluster", 1)
    again = ip.run("%tbcluster connect --local 1")
    assert again.value is cluster
    assert "already connected" in again.text
    assert ip.run("%tbcluster status").value is cluster
    assert ip.run("%px print(fabric.all_reduce(np.ones(4))[0])").text.split() == ["[stdout:0]", "1.0"]
    assert "at most the 1 nodes" in ip.run("%tbscale decode --on 2").text
    started = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert ip.run("%tbcluster disconnect").error is None
    assert cluster.closed
    gone = ip.run("%px print(1)")
    assert isinstance(gone.error, UsageError)
    assert "%px" in gone.text
    _, left = psutil.wait_procs(started, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    assert ip.run("%tbcluster disconnect").text == "not connected\n"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_kernel_restart_leaves_nothing_behind(tmp_path):
    """The cluster of a kernel that is restarted is gone with its processes, and the new kernel starts afresh."""
    from jupyter_client.manager import start_new_kernel

    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    manager, client = start_new_kernel(cwd=str(tmp_path), env=os.environ | {"PYTHONPATH": paths})
    try:
        said = answer(client, "%load_ext tbkit\ncl = %tbcluster connect --local 1\nprint(cl.status())")
        assert "'engine': 'up'" in said
        started = started_in(tmp_path) - {manager.provisioner.pid}
        assert len(started) >= 3, "controller, engine, rank"
        client.stop_channels()
        manager.restart_kernel()
        _, left = psutil.wait_procs([psutil.Process(p) for p in started if psutil.pid_exists(p)], timeout=15)
        assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=DEADLINE_S)
        assert "not connected" in answer(client, "%load_ext tbkit\n%tbcluster disconnect")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def answer(client, cell):
    """What a cell prints in a kernel."""
    said = []

    def keep(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(cell, timeout=DEADLINE_S, output_hook=keep)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(said)


def started_in(folder):
    """Pids of the processes whose current folder is this one: engines are no children of their kernel."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.add(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
