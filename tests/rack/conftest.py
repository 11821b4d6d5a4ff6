"""The rack for tests: one boot a session, of four nodes, or of two where no selected test needs more.

``rack`` (nodes 1 to 4) and ``rack2`` (nodes 1 and 2) give it whole: every fault of the test before is undone, and
killed nodes are booted again, which takes as long as a boot. ``rack.node(k).run(...)`` runs a command,
``rack.node(k).start(...)`` a program whose stdin and stdout stay connected; faults are ``pull``, ``plug``, ``lose``,
``freeze``, ``thaw`` and ``kill``. Nodes read the host's files and keep what they have read: after a rebuild call
``rack.node(k).forget_files()``. Where nodes cannot be had the tests say why and are left out; with STRICT that is a
failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.rack.images import Images, Missing, images
from tests.rack.rack import Rack


@pytest.fixture(scope="session")
def kept_images() -> Images:
    """What nodes boot; the first time on a machine it is fetched and built, which takes half a minute."""
    try:
        return images()
    except Missing as missing:
        return _leave_out(str(missing))


@pytest.fixture(scope="session")
def whole_rack(request: pytest.FixtureRequest) -> Iterator[Rack]:
    """Booted once: four nodes, or two where no selected test asks for more."""
    request.getfixturevalue("kept_images")
    four = any("rack" in getattr(item, "fixturenames", ()) for item in request.session.items)
    with Rack(4 if four else 2) as rack:
        yield rack
    left = [node for node in rack.numbers if rack.node(node).alive]
    assert left == [], f"nodes {left} still run"


@pytest.fixture
def rack(whole_rack: Rack) -> Rack:
    """Four nodes in full mesh, nothing wrong with any."""
    whole_rack.restore()
    return whole_rack


@pytest.fixture
def rack2(whole_rack: Rack) -> Rack:
    """Nodes 1 and 2; where other tests ask for four, 3 and 4 idle beside them."""
    whole_rack.restore()
    return whole_rack


def _leave_out(reason: str) -> NoReturn:
    if os.environ.get("STRICT", "") not in ("", "0"):
        pytest.fail(f"STRICT: {reason}")
    pytest.skip(reason)
