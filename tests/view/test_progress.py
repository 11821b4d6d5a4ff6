"""A bar for a person, silence for everybody else."""

from __future__ import annotations

import io

import pytest

from tbkit.view import progress
from tbkit.view.progress import Progress, watched


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Kernel:
    def __init__(self, asks):
        self._allow_stdin = asks


@pytest.fixture(autouse=True)
def person(monkeypatch):
    for name in ("CI", "IPP_NONINTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "_kernel", lambda: None)


def test_who_watches():
    """A terminal does; a pipe, CI and a batch run do not."""
    assert watched(Terminal()) and not watched(io.StringIO())
    assert not watched(Terminal(), {"CI": "true"}) and not watched(Terminal(), {"IPP_NONINTERACTIVE": "1"})
    closed = Terminal()
    closed.isatty = lambda: (_ for _ in ()).throw(ValueError("closed"))
    assert not watched(closed)


@pytest.mark.parametrize("asks", [True, False])
def test_a_notebook_is_watched_when_its_front_end_can_ask(monkeypatch, asks):
    """JupyterLab allows prompts; nbconvert and nbclient do not. The stream's own word does not count."""
    monkeypatch.setattr(progress, "_kernel", lambda: Kernel(asks))
    assert watched(Terminal() if not asks else io.StringIO()) is asks


def test_short_work_is_silent():
    """Under 2 s nothing is written, not even at the end."""
    stream = Terminal()
    with Progress("decode", 3, stream) as tell:
        for done in (1, 2, 3):
            tell(done)
    assert stream.getvalue() == ""


def test_long_work_shows_how_far_it_is(monkeypatch):
    """After the delay: what, how much of all, what now; and the line is cleared at the end."""
    monkeypatch.setattr(progress, "SILENT_S", 0.0)
    stream = Terminal()
    with Progress("decode", stream=stream) as tell:
        for done in range(1, 5):
            tell(done, 4, f"2 nodes, block {done}")
            tell._bar.refresh()
    said = stream.getvalue()
    assert "decode" in said and "4/4" in said and "2 nodes, block 4" in said
    assert said.rstrip(" \r") == said[: len(said.rstrip(" \r"))] and said.endswith("\r")


def test_an_exception_closes_the_bar(monkeypatch):
    """The error passes through; no bar stays open to complain when it is collected."""
    monkeypatch.setattr(progress, "SILENT_S", 0.0)
    tell = Progress("decode", 2, Terminal())
    with pytest.raises(KeyboardInterrupt), tell:
        tell(1)
        raise KeyboardInterrupt
    assert tell._bar is None
    tell(2)


def test_nobody_watching_costs_nothing():
    """No bar is made at all."""
    stream = io.StringIO()
    with Progress("decode", 2, stream) as tell:
        tell(1)
        assert tell._bar is None
    assert stream.getvalue() == ""
