"""Reading runs: by name, by SQL; and what a folder says that no finished run left."""

from __future__ import annotations

import json
import logging

import pytest

from tbkit import record as runs
from tbkit.errors import InputError, RunCutShort, UsageError
from tbkit.record.schema import Record
from tbkit.record.store import RunFolder, Sample

FIRST, SECOND = "20260911-101500-decode-f1c5", "20260911-111500-decode-0a1b"


def make_record(run_id, state):
    return Record(run_id, "decode", state, "local", "2026-09-11T10:15:00Z", "tiny", {}, {})


def finished(root, run_id, times=(100.0, 110.0)):
    folder = RunFolder.create(root, make_record(run_id, "running"))
    folder.journal([Sample(0, 1, "one", "P", 0, False, i, 0, us) for i, us in enumerate(times)])
    folder.finish(make_record(run_id, "done"))
    return folder.path


@pytest.fixture
def root(tmp_path):
    finished(tmp_path, FIRST)
    finished(tmp_path, SECOND, (200.0, 210.0, 220.0))
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_a_run_is_found_by_last_id_and_folder(root):
    """The three ways to say which run."""
    assert runs.open_run("last", root).id == SECOND
    assert runs.open_run(FIRST, root).id == FIRST
    assert runs.open_run(root / FIRST).id == FIRST
    assert [folder.name for folder in runs.run_folders(root)] == [FIRST, SECOND]


def test_an_unknown_run_names_the_nearest(root, tmp_path):
    """A typing error in an id is answered with the id that was meant."""
    with pytest.raises(UsageError, match=f"Nearest: {FIRST}") as caught:
        runs.open_run(FIRST[:-1] + "6", root)
    assert caught.value.facts["nearest"] == FIRST
    with pytest.raises(UsageError, match="no runs in"):
        runs.open_run("last", tmp_path / "empty")


def test_sql_over_all_runs(root):
    """Both tables, joined; the relation gives plain rows."""
    sql = "select run, count(*), median(step_us) from samples join runs using (run) group by run order by run"
    assert runs.query(sql, root).fetchall() == [(FIRST, 2, 105.0), (SECOND, 3, 210.0)]


def test_sql_leaves_out_what_was_cut_and_says_so(root, caplog):
    """One bad folder does not hide the others."""
    (root / SECOND / "samples.parquet").write_bytes(b"PAR1 cut")
    with caplog.at_level(logging.WARNING, logger="tbkit.record"):
        assert runs.query("select distinct run from samples", root).fetchall() == [(FIRST,)]
    assert SECOND in caplog.text


@pytest.mark.parametrize("sql", ["selec 1", "select * from nothing", "select absent from runs"])
def test_bad_sql_is_one_line(root, sql):
    """DuckDB's own words, without its traceback."""
    with pytest.raises(UsageError) as caught:
        runs.query(sql, root)
    assert "\n" not in str(caught.value)


def test_a_query_without_runs_says_how_to_make_one(tmp_path):
    """An empty root is not an empty table."""
    with pytest.raises(InputError, match="tbkit scale decode"):
        runs.query("select 1", tmp_path)


def cut_record(path):
    data = (path / "record.json").read_bytes()
    (path / "record.json").write_bytes(data[: len(data) // 2])


def no_record(path):
    (path / "record.json").unlink()


def still_running(path):
    record = json.loads((path / "record.json").read_text())
    (path / "record.json").write_text(json.dumps(record | {"state": "running"}))


def cut_samples(path):
    data = (path / "samples.parquet").read_bytes()
    (path / "samples.parquet").write_bytes(data[: len(data) // 2])


def no_samples(path):
    (path / "samples.parquet").unlink()


@pytest.mark.parametrize("damage", [cut_record, no_record, still_running, cut_samples, no_samples])
def test_a_run_cut_short_says_what_is_there_and_what_to_do(root, damage):
    """RunCutShort (exit 2), one line: the run, what is missing, what is left, the remedy."""
    damage(root / FIRST)
    (root / FIRST / "journal.jsonl").write_bytes(b"[]\n[]\n[half")
    with pytest.raises(
        RunCutShort, match=r"measure again; 2 complete blocks are in journal\.jsonl"
    ) as caught:
        runs.read(root / FIRST)
    assert FIRST in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2 and caught.value.facts["blocks"] == 2


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda r: r | {"schema_version": 99}, "schema version 99; this tbkit reads 1"),
        (lambda r: r | {"arms": 7}, r"\$\.arms"),
        (lambda _: {"hello": "world"}, "schema_version"),
        (lambda _: [1, 2], "not the record of a run"),
    ],
)
def test_a_record_of_another_kind_is_refused(root, change, rule):
    """A newer version and a foreign file: InputError that names the field."""
    path = root / FIRST / "record.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(InputError, match=rule):
        runs.read(root / FIRST)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{'a': 1}", b'{"schema_version": 1, oops'])
def test_a_record_that_is_not_json_is_refused(root, data):
    """Garbage is not taken for a crash."""
    (root / FIRST / "record.json").write_bytes(data)
    with pytest.raises(InputError, match="not the record of a run"):
        runs.read(root / FIRST)


def test_a_folder_that_is_no_run(tmp_path):
    """Some other folder, and a path that is not there."""
    with pytest.raises(InputError, match="not a run folder"):
        runs.read(tmp_path)
    with pytest.raises(InputError, match="not a run folder"):
        runs.read(tmp_path / "absent")


def test_samples_with_damage_inside(root):
    """The right first and last bytes around garbage: still one line."""
    (root / FIRST / "samples.parquet").write_bytes(b"PAR1" + b"x" * 50 + b"PAR1")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        runs.samples(root / FIRST)
