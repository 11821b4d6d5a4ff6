"""A measurement as a folder, as a run is one: never changed once written.

::

    ROOT/links/20261201-101500-lat-3fa9/
        links.json         the measurement (schema.py), its schema version in it
        samples.parquet    every raw sample
        environment.json   versions, platform, processors, memory, load

ROOT is that of the runs. The files are written under another name first, so that a folder is whole or not there.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tbkit.errors import InputError
from tbkit.fabric.cards.schema import CARDS_VERSION, Cards, Collectives, Crossing, Measurement
from tbkit.record.provenance import environment
from tbkit.record.store import ENVIRONMENT, SAMPLES, runs_root, whole_file, written

LINKS = "links.json"
KINDS = Cards | Collectives | Crossing


class Sample(msgspec.Struct, frozen=True):
    """Raw samples of one loop: a row of ``samples.parquet``.

    ``source`` and ``target`` are nodes; ``timed_by`` took the times. ``us`` holds a time a sample, ``messages`` how
    many messages each stands for (1: half a round trip, or one call). ``bytes``: a message's; of a crossing, its width.
    """

    what: str
    block: int
    source: str
    target: str
    timed_by: str
    bytes: int
    messages: int
    us: list[float]


def links_root(root: str | Path | None = None) -> Path:
    """The folder of all measurements of links: ``links`` below that of the runs."""
    return Path(runs_root() if root is None else root).expanduser() / "links"


def keep(measured: Measurement, samples: Iterable[Sample], root: str | Path | None = None) -> Measurement:
    """Write the folder; the measurement with its path. InputError in one line where it cannot be written."""
    whole = links_root(root) / measured.id
    part = whole.with_name(f".{measured.id}-{secrets.token_hex(2)}.part")
    with written(whole):
        part.mkdir(parents=True)
        with whole_file(part / LINKS) as file:
            file.write(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
        with whole_file(part / ENVIRONMENT) as file:
            file.write(msgspec.json.format(msgspec.json.encode(environment())) + b"\n")
        _write_samples(part / SAMPLES, samples)
        part.rename(whole)
    return msgspec.structs.replace(measured, path=str(whole))


def _write_samples(path: Path, samples: Iterable[Sample]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kinds = {"block": pa.int32(), "bytes": pa.int64(), "messages": pa.int32(), "us": pa.list_(pa.float64())}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in Sample.__struct_fields__])
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in samples], schema=schema)
    with whole_file(path) as file:
        parquet.write_table(table, file)


class _Version(msgspec.Struct):
    schema_version: int


def read_links(path: str | Path) -> Any:
    """The measurement in a folder, or in a ``links.json`` itself.

    Raises InputError in one line for what is no such file, and for a schema version that this tbkit does not read.
    """
    found = Path(path)
    file = found / LINKS if found.is_dir() else found
    try:
        data = file.read_bytes()
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version != CARDS_VERSION:
            rule = f"is of schema version {version}; this tbkit reads {CARDS_VERSION}"
            raise InputError(str(file), rule, remedy=f"Read it with the tbkit that {ENVIRONMENT} names")
        return msgspec.structs.replace(msgspec.json.decode(data, type=KINDS), path=str(file.parent))
    except OSError as error:
        raise InputError(str(file), "can be read", (error.strerror or str(error)).lower()) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(file), "is a measurement of links", str(error).splitlines()[0]) from None


def samples_of(path: str | Path) -> Any:
    """``pyarrow.Table`` of the raw samples in a measurement's folder: the columns of :class:`Sample`."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    file = Path(path) / SAMPLES
    try:
        return parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InputError(str(file), "is a readable Parquet file", str(error).splitlines()[0]) from None
