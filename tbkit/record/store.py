"""The run folder: written block by block while a run is measured, sealed when it ends.

::

    ROOT/20261130-224812-decode-3fa9/
        record.json        the record (schema.py); its state says "running" until the run is sealed
        environment.json   versions, platform, processors, memory, load (provenance.py)
        journal.jsonl      one line per complete block while running; gone once sealed
        samples.parquet    every raw step time of every rank, once sealed
        log.txt            dated lines

ROOT is the environment variable ``TBKIT_RUNS``, else ``tbkit-runs`` in the working folder. Files
other than the journal and the log are replaced whole (a temporary file beside them, ``os.replace``),
so a reader never sees half of one. Reading is in ``query.py``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tbkit.errors import InputError, UsageError
from tbkit.record.provenance import environment
from tbkit.record.schema import Record

RECORD, ENVIRONMENT, JOURNAL = "record.json", "environment.json", "journal.jsonl"
SAMPLES, LOG = "samples.parquet", "log.txt"


class Sample(msgspec.Struct, frozen=True):
    """One raw step of one rank: a row of ``samples.parquet``. ``segments`` are µs inside the step."""

    load: int
    nodes: int
    plan: str
    intervention: str
    block: int
    warmup: bool
    step: int
    rank: int
    step_us: float
    segments: list[float] | None = None


def runs_root() -> Path:
    """The folder of all runs: ``TBKIT_RUNS``, else ``./tbkit-runs``."""
    return Path(os.environ.get("TBKIT_RUNS") or "tbkit-runs").expanduser()


def new_run_id(workload: str) -> str:
    """``20261130-224812-decode-3fa9``: UTC date and time, the workload's first word, 4 random hex."""
    word = "".join(c for c in workload.lower().split(" ")[0] if c.isascii() and c.isalnum())[:12] or "run"
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{word}-{secrets.token_hex(2)}"


class RunFolder:
    """One run being written: :meth:`create`, :meth:`journal` each block, :meth:`finish`.

    ``tbkit.record.resume`` gives one that was cut short back.

    Every method that writes raises ``InputError`` in one line when the disk is full or the folder
    cannot be written, and leaves what was complete before.
    """

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record = path, record

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r}, state={self.record.state!r})"

    @classmethod
    def create(cls, root: str | Path | None, record: Record) -> RunFolder:
        """A new folder ``root/record.id`` that says "running"; ``root`` None is :func:`runs_root`."""
        path = Path(runs_root() if root is None else root).expanduser() / record.id
        with written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_folder(path)
        folder = cls(path, msgspec.structs.replace(record, state="running"))
        try:
            folder._start()
        except BaseException:
            _remove(path)
            raise
        return folder

    def journal(self, rows: Iterable[Sample]) -> None:
        """Append one complete block. It is on the disk when this returns, or not there at all."""
        line = msgspec.json.encode(list(rows)) + b"\n"
        path = self.path / JOURNAL
        before = path.stat().st_size if path.exists() else 0
        try:
            with written(path), path.open("ab") as file:
                file.write(line)
                _to_disk(file)
        except BaseException:
            with suppress(OSError):
                os.truncate(path, before)
            raise

    def blocks(self) -> list[list[Sample]]:
        """The complete blocks of the journal, in the order in which they were measured."""
        return read_blocks(self.path)

    def log(self, text: str) -> None:
        """Append dated lines to ``log.txt``."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = "".join(f"{now} {line}\n" for line in text.splitlines() or [""])
        with written(self.path / LOG), (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(lines)

    def finish(self, record: Record) -> Record:
        """Seal the run: samples first, the record last, so a record that says "done" has its samples."""
        if record.state == "running" or record.id != self.record.id:
            got = f"{record.id}, state {record.state}"
            raise UsageError(f"run {self.record.id}", "is sealed with its own final record", got)
        data = _checked_json(record)
        _write_samples(self.path / SAMPLES, self.blocks())
        self.log(f"sealed: {record.state}")
        _replace(self.path / RECORD, lambda file: file.write(data))
        self.record = record
        (self.path / JOURNAL).unlink(missing_ok=True)
        return record

    def _start(self) -> None:
        data, facts = _checked_json(self.record), msgspec.json.format(msgspec.json.encode(environment()))
        _replace(self.path / ENVIRONMENT, lambda file: file.write(facts + b"\n"))
        self.log(f"run {self.record.id}: {self.record.workload} of {self.record.model}")
        _replace(self.path / RECORD, lambda file: file.write(data))


def read_blocks(path: Path) -> list[list[Sample]]:
    """Complete blocks of a folder's journal; a last line without its end is not a block."""
    decode = msgspec.json.Decoder(list[Sample]).decode
    try:
        return [decode(line) for line in complete_lines(path)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path / JOURNAL), "is not a journal of blocks", str(error)) from None


def complete_lines(path: Path) -> list[bytes]:
    """The lines of a folder's journal that have their end; [] without a journal."""
    try:
        data = (path / JOURNAL).read_bytes()
    except FileNotFoundError:
        return []
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def sample_schema() -> Any:
    """The ``pyarrow`` schema of ``samples.parquet``; the columns are those of :class:`Sample`."""
    import pyarrow as pa

    kinds = {"plan": pa.string(), "intervention": pa.string(), "warmup": pa.bool_()}
    kinds |= {"step_us": pa.float64(), "segments": pa.list_(pa.float64())}
    return pa.schema([(name, kinds.get(name, pa.int32())) for name in Sample.__struct_fields__])


@contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """A binary file that takes ``path``'s place when the block ends well, and never exists by halves."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with written(path):
            with temporary.open("wb") as file:
                yield file
                _to_disk(file)
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _replace(path: Path, write: Callable[[Any], object]) -> None:
    with whole_file(path) as file:
        write(file)


def _write_samples(path: Path, blocks: Sequence[Sequence[Sample]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = [msgspec.structs.asdict(row) for block in blocks for row in block]
    table = pa.Table.from_pylist(rows, schema=sample_schema())
    _replace(path, lambda file: parquet.write_table(table, file))


def _checked_json(record: Record) -> bytes:
    """JSON of a record that was read back: a NaN would be written as null and never read again."""
    data = msgspec.json.encode(record)
    try:
        msgspec.json.decode(data, type=Record)
    except msgspec.ValidationError as error:
        raise InputError(f"record of run {record.id}", "holds finite numbers only", str(error)) from None
    return msgspec.json.format(data) + b"\n"


def _make_folder(path: Path) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        raise UsageError(f"run {path.name}", "already exists", str(path), "Take a new id") from None


def _remove(path: Path) -> None:
    """Take back a folder that could not be started: the files that this module writes, and no other."""
    for entry in path.iterdir():
        entry.unlink(missing_ok=True)
    with suppress(OSError):
        path.rmdir()


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write (disk full, no permission) into one line with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "Free some space there, or set TBKIT_RUNS to a folder on another disk"
        got = (error.strerror or str(error)).lower()
        raise InputError(str(path), "cannot be written", got, remedy, errno=error.errno) from error
