"""The table of docs/design.md section 1, held by reading every import in tbkit/, the lazy ones too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# One row of the table each, in its order: a room may import any row above its own, never one below.
ROWS = [
    {"_kernels"},
    {"errors", "units", "stats", "show"},
    {"hardware"},
    {"model"},
    {"record"},
    {"fabric"},
    {"plan"},
    {"rank"},
    {"doctor"},
    {"cluster"},
    {"twin"},
    {"scale"},
    {"explain"},
    {"view"},
    {"verbs", "magics", "__main__", "main_job"},
]
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
SINGLE_FILES = ROWS[1]
FACES = ROWS[-1]
NEVER = {"explain": {"cluster", "scale"}, "doctor": {"fabric", "plan", "rank"}}
EXCEPTIONS = {("show", "view")}  # an object finds its drawer when it is displayed
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "misc"}


def dotted(path: Path, package: Path) -> list[str]:
    """``tbkit/rank/shard.py`` as ``["rank", "shard"]``; a package's ``__init__`` stands for the package."""
    parts = list(path.relative_to(package).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


def from_names(node: ast.ImportFrom, where: list[str], is_package: bool) -> Iterator[str]:
    """The full dotted names that a ``from … import …`` reaches, relative ones resolved."""
    if node.level:
        up = node.level - 1 if is_package else node.level
        stem = ["tbkit", *where][: len(where) + 1 - up]
        base = ".".join([*stem, *([node.module] if node.module else [])])
    else:
        base = node.module or ""
    yield from (f"{base}.{alias.name}" for alias in node.names)


def imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in a file: static, inside functions, and by literal name."""
    where, is_package = dotted(path, package), path.name == "__init__.py"
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name) for name in from_names(node, where, is_package))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def judge(importer: str, name: str) -> str:
    """Why the room ``importer`` may not import the dotted ``name``; the empty string where it may."""
    parts = name.split(".")
    if parts[0] != "tbkit" or parts[1:] == ["__version__"]:
        return ""
    target = parts[1] if len(parts) > 1 else ""
    if target == importer or (importer, target) in EXCEPTIONS:
        return ""
    if target not in ROW_OF:
        return "" if importer in FACES else "the public names are for users; import the room"
    if target in SINGLE_FILES:
        return ""
    if importer in SINGLE_FILES:
        return "the single files import no room"
    if target in NEVER.get(importer, ()):
        return f"{importer} never imports {target}"
    if ROW_OF[target] > ROW_OF[importer]:
        return f"{target} stands below {importer} in the table"
    return ""


def violations(package: Path) -> list[str]:
    """Every import that breaks the table, and every file that stands in no room."""
    found = []
    for path in sorted(package.rglob("*.py")):
        room = dotted(path, package)[0]
        if room == "__init__":
            continue  # the list of public names, lazy: tests/test_public_names.py
        at = path.relative_to(package.parent)
        if room not in ROW_OF:
            found.append(f"{at}: {room} is not a room of docs/design.md section 1")
            continue
        for line, name in imported(path, package):
            if why := judge(room, name):
                found.append(f"{at}:{line}: imports {name}: {why}")
    return found


def size_violations(package: Path) -> list[str]:
    """Files too long, rooms too full, names that say nothing."""
    found = []
    for path in sorted(package.rglob("*.py")):
        lines = len(path.read_text().splitlines())
        if lines > 600:
            found.append(f"{path}: {lines} lines, at most 600")
        if path.stem in BANNED_NAMES or path.parent.name in BANNED_NAMES:
            found.append(f"{path}: name it for what it holds")
    for room in [package, *(folder for folder in package.rglob("*") if folder.is_dir())]:
        files = list(room.glob("*.py"))
        if len(files) > 12:
            found.append(f"{room}: {len(files)} files, at most 12, then a sub-room")
    return found


def test_imports_follow_the_table():
    """No file imports a row below its own, nor what its row forbids by name."""
    assert violations(ROOT / "tbkit") == []


def test_files_and_rooms_keep_their_size():
    """At most 600 lines a file, a dozen files a room, and no utils, helpers, common or base."""
    assert size_violations(ROOT / "tbkit") == []


def test_tests_and_tools_keep_their_size():
    """The length rule holds outside the package too."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]

    assert [str(path) for path in files if len(path.read_text().splitlines()) > 600] == []


def test_c_files_keep_their_size():
    """At most 400 lines a file of the compiled module."""
    files = [path for path in (ROOT / "kernels_c").rglob("*") if path.suffix in {".c", ".h", ".cpp", ".hpp"}]

    assert files
    assert [str(path) for path in files if len(path.read_text().splitlines()) > 400] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("plan/search.py", "from tbkit.rank import shard"),
        ("plan/search.py", "from ..rank.shard import Shard"),
        ("plan/search.py", "def lazy():\n    from tbkit import cluster"),
        ("plan/search.py", "def lazy():\n    import tbkit.view.figures"),
        ("plan/search.py", "import importlib\nimportlib.import_module('tbkit.magics')"),
        ("plan/search.py", "import tbkit as tb"),
        ("plan/search.py", "from tbkit import connect"),
        ("plan/__init__.py", "from ..scale import decode"),
        ("explain/ledger.py", "from tbkit.cluster import hosts"),
        ("explain/ledger.py", "from tbkit.scale.gate import judge"),
        ("explain/ledger.py", "from tbkit.view import report"),
        ("doctor/checks.py", "from tbkit.fabric import cards"),
        ("doctor/checks.py", "from tbkit.rank import process"),
        ("stats.py", "from tbkit.record.schema import Interval"),
        ("show.py", "from tbkit.plan import search"),
        ("view/report.py", "from tbkit.magics import parser"),
        ("shared/things.py", "x = 1"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, source):
    """Each way to break the table is seen, however the import is spelled."""
    path = tmp_path / "tbkit" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)

    assert len(violations(tmp_path / "tbkit")) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("rank/body.py", "from tbkit.plan import search\nfrom ..fabric import mesh\nimport numpy"),
        ("rank/body.py", "from . import wire\nfrom .wire import Frame\nfrom tbkit.errors import RankDied"),
        ("rank/__init__.py", "from .wire import Frame\nfrom . import body"),
        ("record/schema.py", "from tbkit.stats import Interval\nfrom tbkit import __version__"),
        ("explain/ledger.py", "from tbkit import stats\nfrom tbkit.twin import replay"),
        ("show.py", "def draw():\n    import tbkit.view"),
        ("magics.py", "import tbkit as tb\nfrom tbkit import view, __main__"),
    ],
)
def test_what_the_table_allows_is_not_found(tmp_path, file, source):
    """Rows above, one's own room, the single files and the one named exception pass."""
    path = tmp_path / "tbkit" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)

    assert violations(tmp_path / "tbkit") == []


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        (["plan/utils.py"], 1),
        (["plan/base/x.py"], 1),
        (["plan/long.py"], 601),
        ([f"plan/f{n}.py" for n in range(13)], 1),
    ],
)
def test_a_planted_size_violation_is_found(tmp_path, files, lines):
    """A banned name, a long file and a full room are each seen."""
    for file in files:
        path = tmp_path / "tbkit" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)

    assert len(size_violations(tmp_path / "tbkit")) == 1
