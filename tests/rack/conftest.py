"""The rack for tests: one boot of four nodes a session.

``rack`` gives it whole: every fault of the test before is undone, and killed nodes are booted again (about the time
of a boot, so tests that kill stand last). ``rack.node(k).run(...)`` runs a command, ``rack.node(k).start(...)`` a
program whose stdin and stdout stay connected; faults are ``pull``, ``plug``, ``lose``, ``freeze``, ``thaw`` and
``kill``. Where nodes cannot be had the tests say why and are left out; with STRICT that is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.rack.images import Missing
from tests.rack.rack import Rack

NODES = 4


@pytest.fixture(scope="session")
def whole_rack() -> Iterator[Rack]:
    """Four nodes, booted once."""
    try:
        rack = Rack(NODES)
    except Missing as missing:
        _leave_out(str(missing))
    with rack:
        yield rack
    left = [node for node in rack.numbers if rack.node(node).alive]
    assert left == [], f"nodes {left} still run"


@pytest.fixture
def rack(whole_rack: Rack) -> Rack:
    """Four nodes in full mesh, nothing wrong with any."""
    whole_rack.restore()
    return whole_rack


def _leave_out(reason: str) -> None:
    if os.environ.get("STRICT", "") not in ("", "0"):
        pytest.fail(f"STRICT: {reason}")
    pytest.skip(reason)
