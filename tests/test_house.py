"""What every tracked file must keep to, whoever writes it."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Written in pieces, so that this file does not hold what it forbids.
FORBIDDEN = {
    "the host of a package registry": re.compile(
        r"deb\.deb" r"ian\.org|py" r"pi\.org|pythonho" r"sted|registry\.npm" r"js|conda\.ana" r"conda\.org",
        re.I,
    ),
    "a path of one machine": re.compile(
        r"(?<![\w.])/(?:wo" r"rk|fa" r"rm|ro" r"ot|Us" r"ers|ho" r"me)/\w|\.libra" r"ry\b"
    ),
    "a word that does not belong": re.compile(
        r"\b(?:cla" r"ude|anth" r"ropic|subag" r"ents?|co-auth" r"ored-by)\b", re.I
    ),
    "unfinished work": re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b"),
}
FRAGMENT = re.compile(r"^[a-z0-9][a-z0-9-]*\.(?:added|changed|fixed|removed|faster)\.md$")
MAKE_CALL = re.compile(r"\bmake ([a-z][a-z-]*)")
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)", re.MULTILINE)
MOST_BYTES = 1_000_000
NEEDED = [
    ".ci/run",
    "CONTRIBUTING.md",
    "LICENSE",
    "LOG.md",
    "Makefile",
    "README.md",
    "docs/design.md",
    "environment.yml",
]


def tracked() -> list[Path]:
    """The files of the repository, those not yet added too; nothing that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout.decode()
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    """The file as text; empty for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def forbidden_in(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and what they hold that no tracked file may hold. Embedded pictures are passed over."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) < 4000:
            yield from ((number, what) for what, pattern in FORBIDDEN.items() if pattern.search(line))


def notebooks() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".ipynb"]


def outputs(path: Path) -> list[dict]:
    """All outputs of a notebook's code cells."""
    cells = json.loads(path.read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def test_no_file_holds_what_none_may_hold():
    """No registry host, no path of one machine, no unfinished work."""
    found = [f"{p.relative_to(ROOT)}:{n}: {what}" for p in tracked() for n, what in forbidden_in(text_of(p))]

    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "index = https://py" + "pi.org/simple",
        'open("/wo' + 'rk/main/x")',
        "# TO" + "DO: later",
        "Co-Auth" + "ored-By: x",
    ],
)
def test_a_planted_line_is_found(line):
    """The patterns see what they are for."""
    assert len(list(forbidden_in(f"first\n{line}\n"))) == 1


def test_the_files_that_a_newcomer_looks_for_are_there():
    """README, licence, log, design, the gate and both environments."""
    names = {str(path.relative_to(ROOT)) for path in tracked()}

    assert [name for name in NEEDED if name not in names] == []


def test_no_file_is_large():
    """A clone stays small: no tracked file of 1 MB or more."""
    assert [str(path) for path in tracked() if path.stat().st_size >= MOST_BYTES] == []


def test_ci_runs_the_whole_gate():
    """.ci/run is the gate of the Makefile and nothing else."""
    assert "make test STRICT=1" in (ROOT / ".ci/run").read_text()
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_of_the_documents_are_make_targets(name):
    """A reader who copies `make X` from a document finds that target."""
    called = set(
        MAKE_CALL.findall(
            " ".join(re.findall(r"`[^`]+`|^    .*$|```.*?```", (ROOT / name).read_text(), re.M | re.S))
        )
    )

    assert called
    assert called <= set(TARGET.findall((ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "LOG.md"])
def test_links_of_the_documents_lead_to_files(name):
    """A relative link or picture points at a tracked file."""
    links = re.findall(r"\]\(([^)#:]+)\)|src=\"([^\":]+)\"", (ROOT / name).read_text())
    targets = [first or second for first, second in links]

    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_changelog_fragments_are_well_formed():
    """NAME.KIND.md: one short paragraph for users that ends in a full stop."""
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    wrong = [
        path.name
        for path in fragments
        if not FRAGMENT.match(path.name)
        or not 20 <= len(text := path.read_text().strip()) <= 600
        or "\n\n" in text
        or not text.endswith(".")
    ]

    assert fragments
    assert wrong == []


def test_log_is_newest_first():
    """LOG.md's findings are dated headings, newest on top."""
    dates = re.findall(r"^## (\d{4}-\d{2}-\d{2})", (ROOT / "LOG.md").read_text(), re.MULTILINE)

    assert dates
    assert dates == sorted(dates, reverse=True)


def test_notebooks_are_published_executed():
    """Every notebook has outputs, none of them an error, and its percent script beside it."""
    for path in notebooks():
        found = outputs(path)
        assert found, f"{path.name} has no outputs"
        assert not [output for output in found if output["output_type"] == "error"], path.name
        assert path.with_suffix(".py").is_file(), f"{path.name} has no paired script"


def test_pictures_in_notebooks_are_small():
    """A picture in an output stays under 1 MB."""
    for path in notebooks():
        for output in outputs(path):
            for kind, data in output.get("data", {}).items():
                if kind in ("image/png", "image/jpeg"):
                    assert len(base64.b64decode("".join(data))) < MOST_BYTES, path.name


def test_skips_give_their_reason():
    """A skipped or expected failure says why, where it stands."""
    bare = re.compile(r"pytest\.(?:mark\.)?(?:sk" r"ip|xf" r"ail)\b(?!\w)(?!.*reason)")
    scripts = [path for path in tracked() if path.suffix == ".py" and path != Path(__file__).resolve()]

    assert [str(p) for p in scripts if any(bare.search(line) for line in text_of(p).splitlines())] == []
