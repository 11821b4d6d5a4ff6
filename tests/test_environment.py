"""environment.yml, requirements.lock and pyproject.toml say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"msgpack-python": "msgpack", "python-duckdb": "duckdb"}
CONDA_ONLY = {"python", "cxx-compiler"}
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.+?))? \\$", re.MULTILINE)


def required(*extras: str) -> list[Requirement]:
    """The project's dependencies and those of the named extras."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def conda_lines() -> tuple[list[str], list[str]]:
    """The conda lines and the pip lines of environment.yml."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in listed if isinstance(entry, dict))
    return [entry for entry in listed if isinstance(entry, str)], pip


def as_key(requirement: Requirement) -> tuple[str, str, str, str]:
    """What must agree: name, extras, bounds and marker."""
    extras = ",".join(sorted(requirement.extras))
    return canonicalize_name(requirement.name), extras, str(requirement.specifier), str(requirement.marker)


def test_conda_environment_has_the_same_names_and_bounds():
    """Every dependency of the project and of its lab extra stands in environment.yml, with its bounds."""
    conda, pip = conda_lines()
    parsed = [Requirement(line) for line in conda]
    for requirement in parsed:
        requirement.name = CONDA_NAMES.get(requirement.name, requirement.name)

    listed = {as_key(r) for r in [*parsed, *map(Requirement, pip)] if r.name not in CONDA_ONLY}

    assert listed == {as_key(requirement) for requirement in required("lab")}


def test_conda_environment_asks_for_the_project_s_python():
    """The python bound is requires-python."""
    conda, _ = conda_lines()

    assert f"python{PROJECT['requires-python']}" in conda


def test_conda_environment_uses_one_channel():
    """conda-forge alone, so that no second channel shadows it."""
    channels = yaml.safe_load((ROOT / "environment.yml").read_text())["channels"]

    assert channels == ["conda-forge", "nodefaults"]


def locked() -> dict[str, list[str]]:
    """Name to pinned versions; a name may be pinned per Python version."""
    found: dict[str, list[str]] = {}
    for name, version, _ in PINNED.findall((ROOT / "requirements.lock").read_text()):
        found.setdefault(name, []).append(version)
    return found


def test_lock_covers_every_dependency_within_its_bounds():
    """A dependency that was added or moved without `make lock` is named here."""
    pins = locked()
    wrong = []
    for requirement in required("lab", "test"):
        versions = pins.get(canonicalize_name(requirement.name), [])
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement} (locked: {', '.join(versions) or 'nothing'})")

    assert not wrong, "run make lock"


def test_lock_covers_the_build_requirements():
    """The build runs without isolation, so its requirements come from the lock too."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

    assert {canonicalize_name(Requirement(line).name) for line in build} <= locked().keys()


def test_every_pin_has_hashes():
    """No line of the lock can be met by a file that was not seen when it was made."""
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    pins = [block for block in blocks if not block.startswith("#")]

    assert len(pins) > 100
    assert all("--hash=sha256:" in block for block in pins)


def test_lock_names_no_host_and_no_path():
    """The lock works with whatever index a machine is set up for."""
    text = (ROOT / "requirements.lock").read_text()

    assert not re.search(r"://|^-|^\s+/|--(?:extra-)?index-url|--find-links|file:", text, re.MULTILINE)
