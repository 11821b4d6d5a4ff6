"""Writing a run folder: block by block, sealed whole, nothing half-written when the disk says no."""

from __future__ import annotations

import errno
import json
import os

import msgspec
import pytest

from tbkit import record as runs
from tbkit.errors import InputError, UsageError
from tbkit.record import provenance
from tbkit.record.schema import Arm, Record
from tbkit.record.store import RunFolder, Sample, new_run_id
from tbkit.stats import Interval


def make_record(run_id="20260911-101500-decode-f1c5", state="running", **more):
    cluster, factors = {"nodes": ["n0"]}, {"seed": 1}
    when = "2026-09-11T10:15:00Z"
    return Record(run_id, "decode", state, "local", when, "tiny", cluster, factors, **more)


def block(number, ranks=2, steps=3):
    warm_up, arm = number == 0, ("tensor-uneven", "P")
    return [
        Sample(0, ranks, *arm, number, warm_up, step, rank, 100.5 + step, [1.0, 2.5] if rank else None)
        for step in range(steps)
        for rank in range(ranks)
    ]


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_from_start_to_seal(tmp_path):
    """Running: record, environment, journal, log. Sealed: samples instead of the journal, and readable."""
    folder = RunFolder.create(tmp_path, make_record())
    folder.journal(block(0))
    folder.journal(block(1))
    assert names(folder.path) == ["environment.json", "journal.jsonl", "log.txt", "record.json"]
    assert [len(rows) for rows in folder.blocks()] == [6, 6]
    sealed = folder.finish(make_record(state="done"))
    assert names(folder.path) == ["environment.json", "log.txt", "record.json", "samples.parquet"]
    assert runs.read(folder.path) == sealed
    assert runs.samples(folder.path).to_pylist() == [
        msgspec.structs.asdict(s) for n in (0, 1) for s in block(n)
    ]


def test_samples_have_fixed_columns_even_without_rows(tmp_path):
    """A run whose gate failed before the first block has an empty table of the same columns."""
    folder = RunFolder.create(tmp_path, make_record())
    folder.finish(make_record(state="wrong"))
    table = runs.samples(folder.path)
    assert table.num_rows == 0
    assert table.column_names == ["load", "nodes", "plan", "intervention", "block", "warmup", "step", "rank",
                                  "step_us", "segments"]  # fmt: skip
    assert str(table.schema.field("warmup").type) == "bool"
    assert str(table.schema.field("segments").type).startswith("list<")


def test_the_root_is_the_environments_or_the_working_folders(tmp_path, monkeypatch):
    """TBKIT_RUNS, else ./tbkit-runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TBKIT_RUNS", raising=False)
    assert RunFolder.create(None, make_record()).path.resolve().parent == tmp_path / "tbkit-runs"
    monkeypatch.setenv("TBKIT_RUNS", str(tmp_path / "elsewhere"))
    assert RunFolder.create(None, make_record()).path.parent == tmp_path / "elsewhere"


def test_ids_sort_by_time_and_are_safe_as_names():
    """Date, time, a short workload, four hex: no blanks or slashes, whatever the workload is called."""
    assert runs.new_run_id("../%%tbscale cell").split("-")[2] == "tbscale"
    ids = [new_run_id("decode") for _ in range(50)]
    assert len(set(ids)) > 45 and all(len(i) == len("20260911-101500-decode-f1c5") for i in ids)


def test_an_id_is_used_once(tmp_path):
    """A second run under the same id is refused and the first is untouched."""
    first = RunFolder.create(tmp_path, make_record())
    first.journal(block(0))
    with pytest.raises(UsageError, match="already exists"):
        RunFolder.create(tmp_path, make_record())
    assert len(first.blocks()) == 1


def test_a_full_disk_at_the_start_leaves_no_folder(tmp_path, monkeypatch):
    """One line that names the file and the remedy; the folder is taken back."""
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(
        InputError, match=r"cannot be written \(got no space left on device\)\. Free some"
    ) as caught:
        RunFolder.create(tmp_path, make_record())
    assert "\n" not in str(caught.value) and caught.value.facts["errno"] == errno.ENOSPC
    assert names(tmp_path) == []


def test_a_full_disk_in_a_block_keeps_the_blocks_before(tmp_path, monkeypatch):
    """The journal is cut back to the last complete block."""
    folder = RunFolder.create(tmp_path, make_record())
    folder.journal(block(0))
    before = (folder.path / "journal.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(InputError, match="no space"):
            folder.journal(block(1))
    assert (folder.path / "journal.jsonl").read_bytes() == before
    folder.journal(block(1))
    assert len(folder.blocks()) == 2


def test_a_full_disk_at_the_seal_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    """No temporary file stays; the journal does, and the run can be sealed later."""
    folder = RunFolder.create(tmp_path, make_record())
    folder.journal(block(0))
    there = names(folder.path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(InputError, match="no space"):
            folder.finish(make_record(state="done"))
    assert names(folder.path) == there
    assert json.loads((folder.path / "record.json").read_text())["state"] == "running"
    folder.finish(make_record(state="done"))
    assert runs.samples(folder.path).num_rows == 6


def test_a_root_that_is_a_file_is_refused(tmp_path):
    """Not a traceback: the path and why."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        RunFolder.create(tmp_path / "runs", make_record())


def test_a_number_that_is_not_finite_is_refused_before_it_is_written(tmp_path):
    """JSON has no NaN: the record could never be read again."""
    step = Interval(float("nan"), 1.0, 2.0, 5)
    arm = Arm(1, "one", "P", step, step, 5, 6, 0, 0, True, 0.0)
    folder = RunFolder.create(tmp_path, make_record())
    with pytest.raises(InputError, match=r"finite numbers.*arms"):
        folder.finish(make_record(state="done", arms=(arm,)))
    assert not (folder.path / "samples.parquet").exists()


def test_a_seal_needs_a_final_record_of_the_same_run(tmp_path):
    """Neither a running record nor another run's."""
    folder = RunFolder.create(tmp_path, make_record())
    for record in (make_record(), make_record("20260911-101500-decode-0000", "done")):
        with pytest.raises(UsageError, match="final record"):
            folder.finish(record)


def test_a_run_cut_short_goes_on(tmp_path):
    """The half-written block is dropped, the complete ones stay, new ones are appended."""
    folder = RunFolder.create(tmp_path, make_record())
    folder.journal(block(0))
    with (folder.path / "journal.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(block(1))[:40])
    again = runs.resume(folder.path)
    again.journal(block(2))
    assert [rows[0].block for rows in again.blocks()] == [0, 2]
    again.finish(make_record(state="done"))
    with pytest.raises(UsageError, match="cut short"):
        runs.resume(folder.path)


def test_the_environment_names_versions_and_the_machine_but_no_person(tmp_path):
    """Versions from metadata, cores, memory, load; no host name."""
    folder = RunFolder.create(tmp_path, make_record())
    facts = runs.read_environment(folder.path)
    assert {"python", "tbkit", "mlx", "mlx-lm", "ipyparallel"} <= set(facts["versions"])
    assert facts["memory_total_bytes"] > 2**28 and facts["cpu_count"] >= 1
    assert len(facts["load_average"]) == 3 and facts["platform"]
    assert os.uname().nodename not in json.dumps({k: v for k, v in facts.items() if k != "platform"})
    assert provenance.versions()["python"].count(".") == 2
