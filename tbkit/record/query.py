"""Reading run folders: one record, one run's samples, all runs by SQL.

A folder that a finished run did not leave is told apart from one that is not ours at all: the first is
``RunCutShort`` and says what is there, the second ``InputError``. Each is one line.
"""

from __future__ import annotations

import difflib
import logging
import re
from pathlib import Path
from typing import Any

import msgspec

from tbkit.errors import InputError, RunCutShort, UsageError
from tbkit.record.schema import SCHEMA_VERSION, Record
from tbkit.record.store import (
    ENVIRONMENT,
    JOURNAL,
    RECORD,
    SAMPLES,
    RunFolder,
    complete_lines,
    runs_root,
    written,
)

_log = logging.getLogger("tbkit.record")
_RUN_NAME = re.compile(r"\d{8}-\d{6}-[a-z0-9]+-[0-9a-f]{4}")
_MAKE_ONE = "Make one with 'tbkit scale decode'"
_PARQUET_MARK = b"PAR1"  # first and last four bytes of a complete file


class _Version(msgspec.Struct):
    schema_version: int


def read(path: str | Path) -> Record:
    """The record of a sealed run folder.

    Raises ``RunCutShort`` when the run did not end or a file of it is cut, ``InputError`` when the
    record is not one that this version reads.
    """
    folder = Path(path)
    record = read_record_json(folder)
    if record.state == "running":
        raise _cut_short(folder, "did not end", "state running")
    _check_samples(folder)
    return record


def open_run(reference: str | Path, root: str | Path | None = None) -> Record:
    """The record of ``"last"``, of a run's id, or of a folder; ``root`` None is ``runs_root()``."""
    return read(find_run(reference, root))


def find_run(reference: str | Path, root: str | Path | None = None) -> Path:
    """The folder of ``"last"`` (the newest run), of an id under ``root``, or the folder itself."""
    base = Path(runs_root() if root is None else root).expanduser()
    known = run_folders(base)
    if str(reference) == "last" and known:
        return known[-1]
    named = {folder.name: folder for folder in known}
    if str(reference) in named:
        return named[str(reference)]
    if str(reference) != "last" and Path(reference).expanduser().is_dir():
        return Path(reference).expanduser()
    raise _unknown(str(reference), base, list(named))


def run_folders(root: str | Path | None = None) -> list[Path]:
    """All run folders under ``root``, oldest first; those cut short too."""
    base = Path(runs_root() if root is None else root).expanduser()
    if not base.is_dir():
        return []
    found = [entry for entry in base.iterdir() if entry.is_dir() and _is_run(entry)]
    return sorted(found, key=lambda folder: (folder.name[:15], folder.stat().st_mtime_ns))


def resume(path: str | Path) -> RunFolder:
    """The folder of a run that was cut short, to go on with; a half-written last block is dropped.

    ``RunFolder.blocks`` has what was measured. A sealed run is a ``UsageError``.
    """
    folder = Path(path)
    record = read_record_json(folder)
    if record.state != "running":
        raise UsageError(f"run {record.id}", "only a run cut short can go on", f"state {record.state}")
    complete = sum(map(len, complete_lines(folder)))
    with written(folder / JOURNAL), (folder / JOURNAL).open("ab") as file:
        file.truncate(complete)
    return RunFolder(folder, record)


def read_environment(path: str | Path) -> dict[str, Any]:
    """``environment.json`` of a run folder; {} where it is missing or cannot be read."""
    try:
        return msgspec.json.decode((Path(path) / ENVIRONMENT).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def samples(path: str | Path) -> Any:
    """``pyarrow.Table`` of a sealed run: load, nodes, plan, intervention, block, warmup, step, rank, step_us.

    ``step_us`` is microseconds, raw; ``segments`` is a list of microseconds inside the step, or null.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder = Path(path)
    _check_samples(folder)
    try:
        return parquet.read_table(folder / SAMPLES)
    except (OSError, pa.ArrowException) as error:
        raise InputError(str(folder / SAMPLES), "is not a readable Parquet file", _line(error)) from None


def query(sql: str, root: str | Path | None = None) -> Any:
    """``duckdb`` relation of a query over all sealed runs under ``root``.

    Two tables: ``samples`` (the columns of :func:`samples` and ``run``) and ``runs`` (run, created,
    workload, model, state, reality). ``query("select run, median(step_us) from samples group by run")``.
    """
    import duckdb

    folders = [folder for folder in run_folders(root) if _sealed(folder)]
    if not folders:
        raise InputError(str(root or runs_root()), "has no finished run", remedy=_MAKE_ONE)
    connection = duckdb.connect()
    connection.register("runs", _runs_table(folders))
    connection.register("samples", _all_samples(folders))
    try:
        return connection.sql(sql)
    except duckdb.Error as error:
        remedy = "The tables are samples and runs"
        raise UsageError("query", "is not SQL that DuckDB runs", _line(error), remedy) from None


def read_record_json(folder: Path) -> Record:
    """``record.json`` alone, whatever the state of the run."""
    path = folder / RECORD
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not folder.is_dir() or not _is_run(folder):
            raise InputError(str(folder), "is not a run folder", f"no {RECORD}") from None
        raise _cut_short(folder, f"has no {RECORD}", "") from None
    except OSError as error:
        raise InputError(str(path), "cannot be read", error.strerror or str(error)) from None
    return _decode(folder, data)


def _decode(folder: Path, data: bytes) -> Record:
    path = str(folder / RECORD)
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            rule = f"is of schema version {version}; this tbkit reads {SCHEMA_VERSION}"
            raise InputError(path, rule, remedy=f"Read it with the tbkit that {ENVIRONMENT} names")
        return msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "truncated" in str(error):
            raise _cut_short(folder, f"has a cut {RECORD}", f"{len(data)} bytes") from None
        raise InputError(path, "is not the record of a run", _line(error)) from None


def _check_samples(folder: Path) -> None:
    path = folder / SAMPLES
    if not path.exists():
        raise _cut_short(folder, f"has no {SAMPLES}", "")
    if not _complete_parquet(path):
        raise _cut_short(folder, f"has a cut {SAMPLES}", f"{path.stat().st_size} bytes")


def _complete_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(-4, 2)
            return head == file.read(4) == _PARQUET_MARK
    except OSError:
        return False


def _sealed(folder: Path) -> bool:
    try:
        read(folder)
    except (RunCutShort, InputError) as error:
        _log.warning("left out: %s", error)
        return False
    return True


def _cut_short(folder: Path, rule: str, got: str) -> RunCutShort:
    blocks = len(complete_lines(folder))
    there = f"{blocks} complete blocks are in {JOURNAL}" if blocks else "no complete block is there"
    remedy = f"If no tbkit writes it still, measure again; {there}"
    return RunCutShort(f"run {folder.name}", rule, got, remedy, path=str(folder), blocks=blocks)


def _unknown(reference: str, root: Path, names: list[str]) -> UsageError:
    if not names:
        return UsageError(f"run {reference!r}", f"there are no runs in {root}", remedy=_MAKE_ONE)
    near = difflib.get_close_matches(reference, names, n=1, cutoff=0.3)
    nearest = near[0] if near else names[-1]
    rule = f"is not in {root} and not a folder"
    return UsageError(f"run {reference!r}", rule, remedy=f"Nearest: {nearest}", nearest=nearest)


def _is_run(folder: Path) -> bool:
    return bool(_RUN_NAME.fullmatch(folder.name)) or (folder / RECORD).exists() or (folder / JOURNAL).exists()


def _runs_table(folders: list[Path]) -> Any:
    import pyarrow as pa

    fields = ("created", "workload", "model", "state", "reality")
    records = [(folder.name, read(folder)) for folder in folders]
    return pa.Table.from_pylist([{"run": name} | {f: getattr(r, f) for f in fields} for name, r in records])


def _all_samples(folders: list[Path]) -> Any:
    import pyarrow as pa

    tables = [(folder.name, samples(folder)) for folder in folders]
    return pa.concat_tables([t.append_column("run", pa.array([name] * len(t))) for name, t in tables])


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
