"""Nothing of a rack outlives the process that started it, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.rack.remote import ROOT

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(240)]

BOOTING = "from tests.rack.rack import Rack\nwith Rack(2): pass\nprint('over')"
STARTED_S = 20.0
GONE_S = 10.0


def booting() -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A process that boots two nodes, and these, still on their way."""
    parent = subprocess.Popen([sys.executable, "-c", BOOTING], cwd=ROOT, stdout=subprocess.PIPE)
    end = time.monotonic() + STARTED_S
    while time.monotonic() < end:
        nodes = [child for child in psutil.Process(parent.pid).children() if "qemu" in child.name()]
        if len(nodes) == 2:
            return parent, nodes
        time.sleep(0.05)
    parent.kill()
    pytest.fail("two nodes did not start")


@pytest.mark.usefixtures("kept_images")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_nodes_end_with_the_process_that_started_them(how):
    """SIGKILL, or a Ctrl-C in the midst of booting: no qemu is left and no file of a cable."""
    before = set(Path(tempfile.gettempdir()).iterdir())
    parent, nodes = booting()
    parent.send_signal(how)
    parent.communicate(timeout=GONE_S)
    _, alive = psutil.wait_procs(nodes, GONE_S)

    assert alive == []
    assert [
        path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if "tbkit" in path.name
    ] == []
