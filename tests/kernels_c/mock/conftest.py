"""A namespace of each test's own, and ways to ask and to start the programs in it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernels_c.mock.programs import (
    Answer,
    Asker,
    Folder,
    Pair,
    compiled,
    finish,
    folders_of,
    has_header,
    run,
    settings,
)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder with library and programs under some sanitizers, made once; left out without the header."""
    folders: dict[str, Path] = {}
    if not has_header():
        reason = "no <infiniband/verbs.h> for the C compiler (Debian: apt-get install libibverbs-dev)"
        if os.environ.get("STRICT"):
            pytest.fail(f"STRICT: {reason}")
        pytest.skip(reason=reason)

    def folder(sanitizers: str = "address,undefined") -> Path:
        if sanitizers not in folders:
            folders[sanitizers] = compiled(tmp_path_factory.mktemp("mock"), sanitizers)
        return folders[sanitizers]

    return folder


@pytest.fixture
def namespace(built: Folder) -> Iterator[str]:
    """A namespace of this test alone; one more process enters and leaves it, which clears what a kill left."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    if folders_of(name):
        run(built(), "objects", ["devices"], settings(built(), name))
        assert folders_of(name) == []


@pytest.fixture
def ask(built: Folder, namespace: str) -> Asker:
    """Ask one question of a program with rules and faults."""

    def asked(program: str, question: str, rules: str = "", faults: str = "", **more: str) -> Answer:
        env = settings(built(), namespace, rules=rules, faults=faults, **more)
        return run(built(), program, question.split(), env)

    return asked


@pytest.fixture
def pair(built: Folder, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Start two processes; those that still run are ended."""
    pairs: list[Pair] = []

    def started(mode: str, rules: str = "", fault: str = "", sanitizers: str = "address,undefined") -> Pair:
        pairs.append(Pair(built(sanitizers), namespace, tmp_path, mode, rules, fault))
        return pairs[-1]

    yield started
    for each in pairs:
        for end in each.ends:
            if end.poll() is None:
                finish(end)
