"""JupyterLab in headless Chromium: the quickstart notebook opened and run as a person would, once a session.

What was on the page is kept as plain data, and the notebook that Lab saved lies in ``build/browser/`` beside the
screenshots, where ``tests/notebooks`` reads it: so both share one run of the notebook and one cluster.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "notebooks" / "01_quickstart.py"
OUT = ROOT / "build" / "browser"
SAVED = OUT / "01_quickstart.ipynb"
BROWSERS = ("chromium", "google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SERVER_DEADLINE_S = 60
PAGE_DEADLINE_S = 60
RUN_DEADLINE_S = 480
STOP_DEADLINE_S = 30
LOOK_EVERY_MS = 250  # by default the page is looked at in every frame that it draws, which takes half a core
WIDTH, HEIGHT, TALLEST = 1400, 1000, 12_000

_READY = """() => {
  const kernel = document.querySelector('.jp-Toolbar-kernelName')?.innerText ?? 'No Kernel';
  return document.querySelector('.jp-Notebook .jp-CodeCell') && kernel !== 'No Kernel'
    && document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle';
}"""
_FINISHED = """() => {
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(p => p.textContent);
  const failed = document.querySelector('[data-mime-type="application/vnd.jupyter.error"], .jp-Dialog');
  return failed || (prompts.length > 0 && prompts.every(p => /^\\[\\d+\\]:$/.test(p)));
}"""
_SEEN = """() => [...document.querySelectorAll('.jp-CodeCell')].map(cell => {
  const area = cell.querySelector('.jp-Cell-outputArea');
  const all = (selector) => area ? [...area.querySelectorAll(selector)] : [];
  return {
    source: cell.querySelector('.jp-InputArea-editor').innerText,
    prompt: cell.querySelector('.jp-InputPrompt').textContent,
    text: area ? area.innerText : '',
    stderr: all('[data-mime-type="application/vnd.jupyter.stderr"]').map(o => o.innerText).join('\\n'),
    error: all('[data-mime-type="application/vnd.jupyter.error"]').map(o => o.innerText).join('\\n'),
    tables: all('table').map(t => t.innerText),
    pictures: all('img, .js-plotly-plot').map(p => {
      const box = p.getBoundingClientRect();
      return {width: box.width, height: box.height, pixels: p.naturalWidth ?? box.width};
    }),
  };
})"""


@dataclass(frozen=True)
class Seen:
    """One code cell as it stood on the page after the run; sizes of pictures in CSS pixels."""

    source: str
    prompt: str
    text: str
    stderr: str
    error: str
    tables: list[str]
    pictures: list[dict[str, float]]


@dataclass(frozen=True)
class Visit:
    """What the page showed: its code cells in order, and the page's own script errors."""

    cells: list[Seen]
    page_errors: list[str]

    def cell(self, part: str) -> Seen:
        """The one cell whose source holds ``part``."""
        (found,) = (cell for cell in self.cells if part in cell.source)
        return found


@pytest.fixture(scope="session")
def visit() -> Visit:
    """The quickstart notebook after *Run All Cells* in JupyterLab, in the small form."""
    browser = _browser_or_leave_out()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    _write_without_outputs(SAVED)
    try:
        with _lab(OUT) as address:
            seen = _run_all(browser, address)
    except BaseException:
        SAVED.unlink(missing_ok=True)
        raise
    return seen


def _browser_or_leave_out() -> str:
    """The browser's path; without it, or without playwright or JupyterLab, the test says so and is left out."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        _leave_out("no Chrome or Chromium is installed")
    for module in ("playwright", "jupyterlab"):
        if importlib.util.find_spec(module) is None:
            _leave_out(f"the Python package {module} is not installed")
    return path


def _leave_out(reason: str) -> None:
    if os.environ.get("STRICT", "") not in ("", "0"):
        pytest.fail(f"STRICT: {reason}")
    pytest.skip(reason)


def _write_without_outputs(target: Path) -> None:
    import jupytext

    jupytext.write(jupytext.read(SCRIPT), target, fmt="ipynb")


@contextmanager
def _lab(root: Path) -> Iterator[str]:
    """A JupyterLab server on ``root`` with settings of its own; gives the notebook's address."""
    token, home = secrets.token_hex(16), root / "jupyter"
    _settings(home / "settings")
    # fmt: off
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.port=0", f"--ServerApp.root_dir={root}",
        f"--IdentityProvider.token={token}", "--LabApp.news_url=None", *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    # fmt: on
    server = subprocess.Popen(
        command, env=_environment(home), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        port = _port(server, root / "server.log")
        yield f"http://127.0.0.1:{port}/lab/tree/{SAVED.name}?token={token}"
    finally:
        _stop(server)


def _settings(folder: Path) -> None:
    """All cells stand on the page, also those that are not in view; no news covers a corner of it."""
    wanted = {
        "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
        "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }
    for name, values in wanted.items():
        file = folder / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))


def _environment(home: Path) -> dict[str, str]:
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    folders = {name: str(home / folder) for name, folder in own.items()}
    return os.environ | folders | {"TBKIT_SMALL": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _port(server: subprocess.Popen[str], log: Path) -> int:
    """The port that the server chose, from its own words; these go to ``log`` as long as it lives."""
    said, found = threading.Event(), []

    def read() -> None:
        with log.open("w") as file:
            for line in server.stderr or ():
                file.write(line)
                file.flush()
                if not found and (match := re.search(r"http://127\.0\.0\.1:(\d+)/", line)):
                    found.append(int(match.group(1)))
                    said.set()
        said.set()

    threading.Thread(target=read, daemon=True).start()
    if not said.wait(SERVER_DEADLINE_S) or not found:
        pytest.fail(f"JupyterLab did not come up within {SERVER_DEADLINE_S} s: {log.read_text()[-2000:]}")
    return found[0]


def _stop(server: subprocess.Popen[str]) -> None:
    """SIGTERM ends the server and its kernels in order; what is left after the deadline is killed."""
    server.terminate()
    try:
        server.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(STOP_DEADLINE_S)


def _run_all(browser: str, address: str) -> Visit:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(PAGE_DEADLINE_S * 1000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        try:
            page.goto(address)
            page.wait_for_function(_READY)
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.locator("#jp-mainmenu-run").get_by_text("Run All Cells", exact=True).click()
            page.wait_for_function(_FINISHED, timeout=RUN_DEADLINE_S * 1000, polling=LOOK_EVERY_MS)
            _save(page)
            cells = [Seen(**cell) for cell in page.evaluate(_SEEN)]
        finally:
            _pictures(page)
            chromium.close()
    return Visit(cells, errors)


def _save(page: Any) -> None:
    def saved(response: Any) -> bool:
        return response.request.method == "PUT" and SAVED.name in response.url

    with page.expect_response(saved):
        page.keyboard.press("Control+s")


def _pictures(page: Any) -> None:
    """``window.png``, what a person sees at the end, and ``page.png``, the whole notebook."""
    page.screenshot(path=OUT / "window.png")
    height = page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer')?.scrollHeight ?? 0")
    page.set_viewport_size({"width": WIDTH, "height": min(TALLEST, max(HEIGHT, int(height) + 160))})
    page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer')?.scrollTo(0, 0)")
    page.screenshot(path=OUT / "page.png")
