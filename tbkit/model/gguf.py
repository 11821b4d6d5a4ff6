"""Reading the header of a GGUF file: metadata and tensor shapes, without loading a weight and without mlx.

The layout is that of the GGUF specification, versions 2 and 3, little-endian: magic, version, number of
tensors, number of key-value pairs, the pairs, the tensors' names, shapes, types and offsets, then the data.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tbkit.errors import InputError
from tbkit.model.facts import ModelFacts, Storage, facts_from_gguf_metadata

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_DEEPEST = 4  # arrays in arrays; no known file has more than one level

# type -> (weights a block, bytes a block, bits of a weight without its scales)
_BLOCKS = {
    0: (1, 4, 32),  # F32
    1: (1, 2, 16),  # F16
    2: (32, 18, 4),  # Q4_0
    3: (32, 20, 4),  # Q4_1
    6: (32, 22, 5),  # Q5_0
    7: (32, 24, 5),  # Q5_1
    8: (32, 34, 8),  # Q8_0
    10: (256, 84, 2),  # Q2_K
    11: (256, 110, 3),  # Q3_K
    12: (256, 144, 4),  # Q4_K
    13: (256, 176, 5),  # Q5_K
    14: (256, 210, 6),  # Q6_K
    28: (1, 8, 64),  # F64
    30: (1, 2, 16),  # BF16
}
_KEPT_BY_MLX = (2, 3, 8)  # mx.load keeps Q4_0, Q4_1 and Q8_0 quantised; it turns all others into float16


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor: shape outermost dimension first (as mlx and numpy show it), type, offset in the data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def weights(self) -> int:
        """Number of weights."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    @property
    def stored_bytes(self) -> int | None:
        """Bytes in the file with scales and biases; None for a type that is not in the table."""
        if self.type not in _BLOCKS:
            return None
        block, size, _ = _BLOCKS[self.type]
        return -(-self.weights // block) * size


class GgufHeader(msgspec.Struct, frozen=True):
    """What stands before the data of a GGUF file. Offsets and sizes are bytes."""

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_offset: int
    file_bytes: int


class _Reader:
    """Bounded reads at a known offset: a corrupt length is an error, never a huge allocation."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self.file, self.path, self.size, self.at = file, path, size, 0

    def wrong(self, rule: str, got: str, at: int | None = None) -> InputError:
        where = self.at if at is None else at
        return InputError(
            f"{self.path}: offset {where}",
            rule,
            got,
            "Remedy: fetch the file again, it is corrupt or cut short",
            offset=where,
        )

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise self.wrong(f"must hold {count} more bytes", f"{self.size - self.at} to the end of the file")
        data = self.file.read(count)
        if len(data) != count:
            raise self.wrong(f"must hold {count} more bytes", f"{len(data)}")
        self.at += count
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        at = self.at
        data = self.take(self.number("<Q"))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.wrong("a string must be UTF-8", repr(data[:20]), at) from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array(depth + 1)
        if kind not in _SCALARS:
            raise self.wrong("a value's type must be 0 to 12", str(kind))
        return self.number(_SCALARS[kind])

    def array(self, depth: int) -> list[Any]:
        kind, count = self.number("<I"), self.number("<Q")
        if depth > _DEEPEST:
            raise self.wrong(f"arrays must nest at most {_DEEPEST} deep", str(depth))
        if count > self.size - self.at:  # every element takes at least one byte
            raise self.wrong("an array must end inside the file", f"{count} elements")
        if kind in _SCALARS:
            form = f"<{count}{_SCALARS[kind][1]}"
            return list(struct.unpack(form, self.take(struct.calcsize(form))))
        return [self.value(kind, depth) for _ in range(count)]

    def tensor(self) -> TensorInfo:
        name, dims = self.text(), self.number("<I")
        if dims > 8:
            raise self.wrong("a tensor must have at most 8 dimensions", f"{dims} of {name!r}")
        shape = tuple(self.number("<Q") for _ in range(dims))
        return TensorInfo(name, shape[::-1], self.number("<I"), self.number("<Q"))


def _pairs(read: _Reader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = read.text()
        metadata[key] = read.value(read.number("<I"))
    return metadata


def _start(read: _Reader) -> tuple[int, int, int]:
    """Version and the numbers of tensors and pairs."""
    if (magic := read.take(4)) != b"GGUF":
        raise read.wrong("a GGUF file must begin with 'GGUF'", repr(magic), 0)
    version = read.number("<I")
    if version not in (2, 3):
        raise read.wrong("the version of GGUF must be 2 or 3, little-endian", str(version), 4)
    return version, read.number("<Q"), read.number("<Q")


def _data_offset(read: _Reader, metadata: dict[str, Any]) -> int:
    step = metadata.get("general.alignment", 32)
    if not isinstance(step, int) or step < 1:
        raise read.wrong("general.alignment must be a positive whole number", repr(step))
    return -(-read.at // step) * step


def _check_data(read: _Reader, tensors: dict[str, TensorInfo], start: int) -> None:
    """All tensors lie inside the file."""
    for info in tensors.values():
        end = start + info.offset + (info.stored_bytes or 0)
        if end > read.size:
            raise read.wrong(
                f"the data of {info.name!r} must end at {end} or later",
                f"a file of {read.size} bytes",
                read.size,
            )


def _parse(read: _Reader) -> GgufHeader:
    version, tensor_count, pair_count = _start(read)
    metadata = _pairs(read, pair_count)
    infos = [read.tensor() for _ in range(tensor_count)]
    tensors = {info.name: info for info in infos}
    start = _data_offset(read, metadata)
    _check_data(read, tensors, start)
    return GgufHeader(read.path, version, metadata, tensors, start, read.size)


def _opened(path: Path, then: Callable[[_Reader], GgufHeader]) -> GgufHeader:
    try:
        with path.open("rb") as file:
            return then(_Reader(file, str(path), os.fstat(file.fileno()).st_size))
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(
            str(path), "must be a file that can be read", why, "Remedy: check the path and its permissions"
        ) from None


def read_header(path: str | Path) -> GgufHeader:
    """The header of a GGUF file, about 0.2 s for a vocabulary of 50 000 tokens.

    Raises :class:`InputError` naming file and offset when it is corrupt, cut short or not to be read.
    """
    return _opened(Path(path), _parse)


def _is_linear(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and info.name.startswith("blk.") and info.name.endswith(".weight")


def storage_of(header: GgufHeader) -> Storage:
    """How tensors are stored: the type of most weights of the linear layers, and the embedding's."""
    by_type: Counter[int] = Counter()
    for info in filter(_is_linear, header.tensors.values()):
        by_type[info.type] += info.weights
    linear = by_type.most_common(1)[0][0] if by_type else -1
    table = header.tensors.get("token_embd.weight")
    block, size, bits = _BLOCKS.get(linear, (1, 0, 0))
    table_block, table_size, table_bits = _BLOCKS.get(table.type if table else -1, (1, 0, 0))
    norm = header.tensors.get("output_norm.weight")
    sizes = [info.stored_bytes for info in header.tensors.values()]
    return Storage(
        group_size=block if linear in _KEPT_BY_MLX else 1,
        weight_bits=bits,
        embedding_bits=table_bits,
        weight_cost_bits=8 * size / block,
        embedding_cost_bits=8 * table_size / table_block,
        norm_bits=_BLOCKS.get(norm.type if norm else -1, (1, 0, 0))[2],
        tied="output.weight" not in header.tensors,
        weights_bytes=None if None in sizes else sum(s for s in sizes if s is not None),
    )


def facts_from_gguf(path: str | Path, name: str = "") -> ModelFacts:
    """Facts of the model in a GGUF file; its name is the file's unless one is given."""
    header = read_header(path)
    return facts_from_gguf_metadata(
        header.metadata, name or Path(path).stem, storage=storage_of(header), source=str(path)
    )
