"""The ``tbkit`` command: exit codes, one line on standard error for what a user can cause, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tbkit.record import Record, RunFolder

ROOT = Path(__file__).resolve().parents[1]
MODEL = "smollm2-135m-instruct"
DEADLINE_S = 60
START_DEADLINE_S = 90


class Ended(NamedTuple):
    """What a command left: exit code, standard output, lines of standard error."""

    code: int
    out: str
    errors: list[str]


def environment():
    """The environment of the command: this tree's tbkit, runs below the current folder."""
    kept = {k: v for k, v in os.environ.items() if k not in ("TBKIT_RUNS", "TBKIT_LIBRDMA")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def tbkit(tmp_path):
    """Runs the command in an empty folder."""

    def run(*words):
        command = [sys.executable, "-m", "tbkit", *map(str, words)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S
        )
        return Ended(done.returncode, done.stdout, done.stderr.splitlines())

    return run


def test_version_is_one_line(tbkit):
    """--version prints the name and the version."""
    code, out, errors = tbkit("--version")
    assert (code, errors) == (0, [])
    assert out.split()[0] == "tbkit"
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_lists_the_verbs(tbkit, words):
    """--help, and no word at all, show the verbs on standard output."""
    code, out, errors = tbkit(*words)
    assert (code, errors) == (0, [])
    for verb in ("quickstart", "links", "plan", "scale", "explain"):
        assert verb in out


def test_help_of_a_verb_ends_in_an_example(tbkit):
    """A verb's help names its flags and gives a line to copy."""
    code, out, _ = tbkit("scale", "--help")
    assert code == 0
    assert "--on" in out
    assert "example: tbkit scale decode" in out


WRONG_USE = {
    "a verb that is not there": (["plann"], "plan?"),
    "a flag that is not there": (["plan", "--modle", MODEL], "--model?"),
    "a flag before its verb": (["--json", "plan"], "after the verb"),
    "a flag without its value": (["scale", "decode", "--kind"], "--kind"),
    "a model that is not there": (["plan", "--model", "smollm-135m", "--local", "2"], MODEL),
    "a workload that is not there": (["scale", "decod", "--local", "2"], "decode?"),
    "no engine": (["scale", "decode", "--local", "0", "--on", "1"], "from 1 to 16"),
    "a thousand engines": (["scale", "decode", "--local", "1000", "--on", "1"], "from 1 to 16"),
    "engines in words": (["scale", "decode", "--local", "two"], "two"),
    "no node": (["scale", "decode", "--local", "2", "--on", "0"], "1,2,4"),
    "a node count that is no number": (["scale", "decode", "--local", "2", "--on", "1,2,x"], "1,2,x"),
    "a digit that is no number": (["scale", "decode", "--local", "2", "--on", "²"], "1,2,4"),
    "more nodes than there are": (["scale", "decode", "--local", "2", "--on", "1,4"], "--local 4"),
    "a kind that is not there": (["scale", "decode", "--local", "2", "--kind", "pipelin"], "pipeline?"),
    "a fault that is not there": (["scale", "decode", "--local", "2", "--plant", "x:1"], "dropped-layer"),
    "a fault beyond the last layer": (["quickstart", "--plant", "dropped-layer:99"], "0 to 29"),
    "one block": (["scale", "decode", "--local", "2", "--blocks", "1"], "at least 2"),
    "no cluster": (["scale", "decode", "--on", "1"], "--local 2"),
    "no machines": (["plan"], "--local 2"),
    "a measurement that is not there": (["links", "lta", "--local", "2"], "lat?"),
    "links of nothing": (["links"], "--local 2"),
    "links of one node": (["links", "bw", "--local", "1"], "--local 2"),
    "a message of no size": (["links", "lat", "--local", "2", "--sizes", "8,x"], "8,x"),
    "a message beyond all memory": (["links", "lat", "--local", "2", "--sizes", "99999999999"], "--sizes"),
    "one block of links": (["links", "lat", "--local", "2", "--blocks", "1"], "at least 2"),
    "a carrier that is not there": (["links", "lat", "--local", "2", "--carrier", "tpc"], "tcp?"),
    "verbs without a mock": (["links", "lat", "--local", "2", "--carrier", "verbs"], "TBKIT_LIBRDMA"),
    "a count where memory is meant": (["plan", "--nodes", "2"], "--local 2"),
    "machines that cannot be read": (["plan", "--nodes", "m3ultra-512*"], "512,512"),
    "no nodes": (["plan", "--local", "0"], "whole number from 1"),
    "a run that is not there": (["explain", "nosuch"], "tbkit scale decode"),
    "no run at all": (["explain"], "tbkit scale decode"),
    "a folder that is no run": (["explain", "/"], "not a run folder"),
    "a place that cannot be written": (["quickstart", "--out", "/dev/null/x"], "--out"),
}


@pytest.mark.parametrize("words, said", WRONG_USE.values(), ids=WRONG_USE)
def test_wrong_use_is_one_line_and_exit_2(tbkit, tmp_path, words, said):
    """Exit 2, one line that names the remedy, nothing on standard output, and no file is left."""
    code, out, errors = tbkit(*words)
    assert (code, out, len(errors)) == (2, "", 1), errors
    assert errors[0].startswith("tbkit")
    assert said in errors[0]
    assert list(tmp_path.iterdir()) == []


def test_json_is_the_only_thing_on_standard_output(tbkit):
    """plan --json gives one JSON document with its keys, and nothing beside it."""
    code, out, errors = tbkit("plan", "--nodes", "m3ultra-512*2", "--json")
    document = json.loads(out)
    assert (code, errors) == (0, [])
    assert sorted(document) == ["best", "facts", "plans"]
    assert {plan["kind"]: plan["fits"] for plan in document["plans"]}["tensor"] is False


def test_a_first_word_is_the_model(tbkit):
    """``plan NAME`` and ``plan --model NAME`` are the same."""
    assert tbkit("plan", MODEL, "--local", "2") == tbkit("plan", "--model", MODEL, "--local", "2")


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_plan_that_cannot_be_is_exit_1(tbkit, json_flag):
    """More nodes than the model has parts: the answer is there, with reasons, and it is a bad one."""
    code, out, errors = tbkit("plan", "--local", "1000", *json_flag)
    assert (code, errors) == (1, [])
    assert "divide" in out


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
BROKEN = {
    "heads that are no multiple": (CONFIG | {"num_key_value_heads": 3}, "num_attention_heads"),
    "no heads": (CONFIG | {"num_attention_heads": 0}, "num_attention_heads"),
    "heads in words": (CONFIG | {"num_attention_heads": "eight"}, "num_attention_heads"),
    "a width that heads do not fill": (CONFIG | {"hidden_size": 65}, "hidden_size"),
    "negative layers": (CONFIG | {"num_hidden_layers": -1}, "num_hidden_layers"),
    "a list": ([CONFIG], "object"),
}  # fmt: skip


@pytest.mark.parametrize("config, field", BROKEN.values(), ids=BROKEN)
def test_a_config_that_makes_no_sense_is_named(tbkit, tmp_path, config, field):
    """Exit 2 and one line with the file and the field."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    for where in ("config.json", "."):
        code, out, errors = tbkit("plan", "--model", where, "--local", "2", "--json")
        assert (code, out, len(errors)) == (2, "", 1), errors
        assert "config.json" in errors[0]
        assert field in errors[0]
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("content", [b"", b'{"model_ty', b"\xff\xfe\x00", b"[" * 100_000])
def test_a_cut_or_foreign_config_is_one_line(tbkit, tmp_path, content):
    """Whatever bytes a config.json holds: exit 2 and one line that names it."""
    (tmp_path / "config.json").write_bytes(content)
    code, out, errors = tbkit("plan", "--model", "config.json", "--local", "2")
    assert (code, out, len(errors)) == (2, "", 1), errors
    assert "config.json" in errors[0]


def a_run(root, state="running"):
    """A run folder as it is while a run writes it."""
    record = Record(
        id="20261130-120000-decode-0abc", workload="decode", state=state, reality="local",
        created="2026-11-30T12:00:00+00:00", model=MODEL, cluster={}, factors={}, arms=(), gates=(), notes=(),
        speedup=(),
    )  # fmt: skip
    return RunFolder.create(root, record).path


def test_a_run_that_was_cut_short_says_so(tbkit, tmp_path):
    """A folder that its run did not finish: exit 2, one line with what is there; by folder, id and ``last``."""
    folder = a_run(tmp_path / "tbkit-runs")
    before = sorted(tmp_path.rglob("*"))
    for name in (folder, folder.name, "last"):
        code, out, errors = tbkit("explain", name)
        assert (code, out, len(errors)) == (2, "", 1), errors
        assert folder.name in errors[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cut_record_says_so(tbkit, tmp_path):
    """A record.json that ends in the middle: exit 2 and one line that names the run."""
    folder = a_run(tmp_path / "tbkit-runs")
    record = folder / "record.json"
    record.write_bytes(record.read_bytes()[:40])
    code, out, errors = tbkit("explain", "last")
    assert (code, out, len(errors)) == (2, "", 1), errors
    assert folder.name in errors[0]


def test_the_nearest_run_is_named(tbkit, tmp_path):
    """A mistyped id is answered with the run that was meant."""
    folder = a_run(tmp_path / "tbkit-runs")
    code, _, errors = tbkit("explain", folder.name[:-1] + "x")
    assert code == 2
    assert folder.name in errors[0]


def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    """Output into a pipe that is closed at once ends quietly."""
    command = [sys.executable, "-m", "tbkit", "plan", "--local", "2"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    run.stdout.close()
    assert "Traceback" not in run.stderr.read()
    assert run.wait(DEADLINE_S) == 1


@pytest.mark.cluster
def test_links_is_one_json_document(tbkit, tmp_path):
    """perftest's rows over a stream; the measurement is kept below the runs, and the path is in the document."""
    words = ["links", "lat", "--local", "2", "--carrier", "tcp", "--sizes", "8,64", "--blocks", "2"]
    code, out, _ = tbkit(*words, "--iterations", "20", "--json")
    document = json.loads(out)
    assert code == 0
    assert [(row["from"], row["#bytes"]) for row in document["rows"]] == [
        (end, size) for end in ("local0", "local1") for size in (8, 64)
    ]
    assert document["reality"] == "local" and document["carrier"] == "tcp"
    assert (tmp_path / document["path"] / "samples.parquet").exists()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(240)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_stopped_command_leaves_no_process(tmp_path, signum):
    """Stopped while it works: one line, its exit code, and no engine, rank or controller lives on."""
    words = ["scale", "decode", "--local", "1", "--on", "1"]
    run = subprocess.Popen(
        [sys.executable, "-m", "tbkit", *words],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "one node first" in run.stderr.readline()  # the cluster is up
        started = psutil.Process(run.pid).children(recursive=True) + engines_of(tmp_path)
        run.send_signal(signum)
        said = run.stderr.read().splitlines()
        assert run.wait(DEADLINE_S) == 130
    finally:
        run.kill()
        run.stderr.close()
    assert [line for line in said if "stopped by" in line] != []
    assert "Traceback" not in "\n".join(said)
    assert len(started) >= 3, "controller, engine, rank"
    _, left = psutil.wait_procs(started, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def engines_of(folder):
    """Engines are no children of the command: they are known by the folder that they were started in."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        try:
            if ("ipyparallel" in line or "tbkit.rank" in line) and process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
