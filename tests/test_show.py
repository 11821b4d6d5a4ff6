"""Display: what a front end gets, that it never raises, and that nothing heavy loads before."""

from __future__ import annotations

import base64
import logging
import shutil
import subprocess
import sys
import zlib

import pytest

from tbkit import show, view
from tbkit.show import Drawing, Shown


class Cluster(Shown):
    """Has a drawer by its name."""

    def __init__(self, rows):
        self.rows = rows

    def __str__(self):
        return "two nodes"

    size, reality = 1, "local"

    def status(self):
        pids = {"engine": "up", "engine_pid": 1, "rank_process": "up", "rank_pid": 2, "rank": 0}
        return [pids | row for row in self.rows]


class Unknown(Shown):
    """Has none."""

    def __repr__(self):
        return "Unknown(7)"


class Pictured(Shown):
    """Drawn with a figure by the drawer that a test installs."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(show, "_no_pictures", "")


def size_of(png):
    """Width and height of a PNG whose every chunk and pixel is whole."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(
        b"IEND" + zlib.crc32(b"IEND").to_bytes(4, "big")
    )
    at, pixels = 8, b""
    while at < len(png):
        end = at + 8 + int.from_bytes(png[at : at + 4], "big")
        assert png[end : end + 4] == zlib.crc32(png[at + 4 : end]).to_bytes(4, "big")
        pixels += png[at + 8 : end] if png[at + 4 : at + 8] == b"IDAT" else b""
        at = end + 4
    width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
    assert len(zlib.decompress(pixels)) % height == 0
    return width, height


def install(monkeypatch, drawing):
    monkeypatch.setattr(view, "drawer_for", lambda kind: (lambda _: drawing) if kind is Pictured else None)


def test_a_type_with_a_drawer_shows_html_and_text():
    """The drawer is found by the name of the type; cells are escaped."""
    bundle = Cluster([{"node": "<n0>"}])._repr_mimebundle_()
    assert bundle["text/plain"] == "two nodes"
    assert "&lt;n0&gt;" in bundle["text/html"] and "<n0>" not in bundle["text/html"]


def test_include_and_exclude_are_honoured():
    """A front end that asks for some kinds gets those."""
    shown = Cluster([{"node": "n0"}])
    assert set(shown._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert set(shown._repr_mimebundle_(exclude={"text/html"})) == {"text/plain"}


def test_a_type_without_a_drawer_is_its_repr():
    """No drawer is no failure."""
    assert Unknown()._repr_mimebundle_() == {"text/plain": "Unknown(7)"}


def test_a_failing_drawer_leaves_text_that_says_so():
    """status() raises inside the drawer: the cell still shows something."""
    text = Cluster(5)._repr_mimebundle_()["text/plain"]
    assert "display failed: TypeError" in text


def test_a_terminal_gets_text_and_no_picture(monkeypatch):
    """IPython in a terminal shows text alone; no browser is started for it."""
    figure = pytest.fail
    install(monkeypatch, Drawing("words", lambda picture: picture, figure))
    monkeypatch.setattr(show, "_text_only", lambda: True)
    assert Pictured()._repr_mimebundle_() == {"text/plain": "words"}


def test_without_a_browser_the_tables_stay_and_it_is_said_once(monkeypatch, caplog):
    """The figure is left out, the log says why one time in the process."""

    class Figure:
        def to_image(self, **_):
            raise RuntimeError("Kaleido requires Google Chrome to be installed.\nlong advice")

    install(monkeypatch, Drawing("words", lambda picture: f"<p>table</p>{picture}", Figure))
    with caplog.at_level(logging.WARNING, logger="tbkit.show"):
        bundles = [Pictured()._repr_mimebundle_() for _ in range(3)]
    assert bundles == [{"text/plain": "words", "text/html": "<p>table</p>"}] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "no static pictures of figures in this process: Kaleido requires Google Chrome to be installed."
    ]


def test_a_static_picture_stands_in_the_html_and_beside_it(monkeypatch):
    """What a saved notebook needs to be read without a kernel: a PNG, inline and on its own."""
    if not any(map(shutil.which, ("chromium", "google-chrome", "chrome"))):
        pytest.skip(reason="no Chrome or Chromium")
    import plotly.graph_objects as go

    figure = go.Figure(go.Bar(x=[1, 2]), {"width": 300, "height": 200})
    install(monkeypatch, Drawing("words", lambda picture: f"<p>{picture}</p>", lambda: figure, 'a "bar"'))
    bundle = Pictured()._repr_mimebundle_()
    assert size_of(base64.b64decode(bundle["image/png"])) == (450, 300)
    assert bundle["image/png"] in bundle["text/html"] and 'alt="a &quot;bar&quot;"' in bundle["text/html"]


def test_nothing_heavy_loads_before_it_is_needed():
    """Importing the rooms that show and keep runs loads no plotly, pandas, scipy, pyarrow or duckdb."""
    code = (
        "import sys, tbkit.units, tbkit.stats, tbkit.show, tbkit.record, tbkit.view, tbkit.view.drawers, "
        "tbkit.view.report, tbkit.view.progress\n"
        "heavy = {'plotly', 'pandas', 'scipy', 'pyarrow', 'duckdb', 'numpy', 'IPython', 'mlx'}\n"
        "print(*heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
