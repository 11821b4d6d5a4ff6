"""The header of GGUF files: known answers, and errors for whatever is corrupt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbkit.errors import InputError
from tbkit.model import facts_from_gguf_metadata, find
from tbkit.model.gguf import facts_from_gguf, read_header, storage_of

META: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.feed_forward_length": 96,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b", "c", "é"],
}
TENSORS = {
    "token_embd.weight": ((4, 64), 8, 4 * 68),
    "blk.0.attn_q.weight": ((64, 64), 3, 64 * 40),
    "output_norm.weight": ((64,), 0, 256),
}
Writer = Callable[..., bytes]


def test_the_catalogue_states_what_the_file_says(model_file: Path) -> None:
    """The facts in the table are those of the file's header, bytes included."""
    entry = find("smollm2-135m-instruct")
    facts = facts_from_gguf(model_file, entry.name)
    assert facts == entry.facts
    assert facts.computed_bytes() == facts.weights_bytes


def test_mlx_metadata_gives_the_same_facts(model_file: Path) -> None:
    """The arrays that mx.load returns are read as plain values are."""
    mx = pytest.importorskip("mlx.core")
    _, metadata = mx.load(str(model_file), return_metadata=True)
    header = read_header(model_file)
    both = [facts_from_gguf_metadata(m, "m", storage=storage_of(header)) for m in (metadata, header.metadata)]
    assert both[0] == both[1]


def test_shapes_types_and_offsets_are_read(tmp_path: Path, write_gguf: Writer) -> None:
    """A small file comes back as it was written."""
    file = tmp_path / "small.gguf"
    file.write_bytes(write_gguf(META, TENSORS))
    header = read_header(file)
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "b", "c", "é"]
    assert header.tensors["blk.0.attn_q.weight"].shape == (64, 64)
    assert sum(t.stored_bytes or 0 for t in header.tensors.values()) == 4 * 68 + 64 * 40 + 256
    facts = facts_from_gguf(file)
    assert (facts.name, facts.vocab_rows, facts.head_dim, facts.group_size) == ("small", 4, 32, 32)
    assert facts.tied and facts.norm_eps == 1e-5


def test_an_output_tensor_means_not_tied(tmp_path: Path, write_gguf: Writer) -> None:
    """A head of its own is a tensor of its own."""
    file = tmp_path / "head.gguf"
    file.write_bytes(write_gguf(META, TENSORS | {"output.weight": ((4, 64), 1, 512)}))
    assert not facts_from_gguf(file).tied


def test_every_truncation_is_named(tmp_path: Path, write_gguf: Writer) -> None:
    """Cut anywhere, even in the data, the file is refused with its name and the offset."""
    whole = write_gguf(META, TENSORS)
    file = tmp_path / "cut.gguf"
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.gguf: offset \d+: .*Remedy"):
            read_header(file)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=4))
def test_no_corruption_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, write_gguf: Writer, changes: list[tuple[int, int]]
) -> None:
    """Bytes changed at random either still read or raise InputError, never anything else."""
    data = bytearray(write_gguf(META, TENSORS))
    for at, byte in changes:
        data[at] = byte
    file = tmp_path_factory.getbasetemp() / "random.gguf"
    file.write_bytes(data)
    try:
        facts_from_gguf(file)
    except InputError as error:
        assert "random.gguf" in str(error)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\3\4" + b"\0" * 100, b"GGUF\1\0\0\0" + b"\0" * 100])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty files, archives and old versions are not taken."""
    file = tmp_path / "other.gguf"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.gguf"):
        read_header(file)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """What cannot be opened gives the system's reason."""
    with pytest.raises(InputError, match="Is a directory"):
        read_header(tmp_path)
