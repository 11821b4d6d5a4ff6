"""Make ``.venv`` from the lock, build the project into it, and write the lock. Called by the Makefile.

What a user can cause (no compiler, no network, …) ends in one line on standard error and exit code 2; what
the installers print goes to ``build/setup.log``. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import system

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
LOCK = Path("requirements.lock")
LOG = Path("build/setup.log")
NO_NETWORK = re.compile(
    r"Failed to establish a new connection|NewConnectionError|ConnectTimeout|Max retries exceeded"
    r"|Name or service not known|[Tt]emporary failure in name resolution|dns error"
    r"|error sending request|Could not connect|Network is unreachable|Connection refused"
)


class SetupFailed(Exception):
    """One line that says what is missing and what to do about it."""


def log_run(*command: str) -> bool:
    """Run ``command`` with its output appended to the log; true when it succeeded."""
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode == 0


def check_compiler() -> None:
    """A C++ compiler that runs; on macOS ``c++`` may be a stub that only asks to be installed."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in wanted:
        if shutil.which(name) and subprocess.run([name, "--version"], capture_output=True).returncode == 0:
            return
    remedy = "xcode-select --install" if sys.platform == "darwin" else "apt-get install g++ (Debian)"
    raise SetupFailed(f"no C++ compiler runs (tried {', '.join(wanted)}): {remedy}")


def check_python() -> None:
    """The venv module and the C headers of this Python; root on Debian gets what is missing."""
    needs = {
        "venv": importlib.util.find_spec("ensurepip") is not None,
        "dev": (Path(sysconfig.get_path("include")) / "Python.h").is_file(),
    }
    missing = [f"python3-{name}" for name, there in needs.items() if not there]
    if not missing or (sys.prefix == "/usr" and system.apt_install(missing)):
        return
    what = {"python3-venv": "venv module", "python3-dev": "C headers"}
    named = " and no ".join(what[name] for name in missing)
    remedy = f"apt-get install {' '.join(missing)} (Debian)"
    raise SetupFailed(f"{sys.executable} has no {named}: {remedy}, or make PYTHON=/path/to/another/python3")


def pinned(name: str) -> str:
    """The lines of one package in the lock, hashes included."""
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)+.*\n", LOCK.read_text(), re.MULTILINE)
    if not found:
        raise SetupFailed(f"{LOCK} does not pin {name}: run make lock")
    return found.group()


def fail(step: str) -> SetupFailed:
    """The reason for a failed step, read from the log."""
    if NO_NETWORK.search(LOG.read_text(errors="replace")):
        return SetupFailed(f"{step} failed, no package index was reached: connect to the network; see {LOG}")
    return SetupFailed(f"{step} failed: the reason is at the end of {LOG}")


def install() -> None:
    """A fresh ``.venv`` that holds exactly the lock, every file checked against its hash."""
    check_python()
    check_compiler()
    print(f"setup: .venv with {sys.executable} and {LOCK} (output in {LOG})", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, symlinks=True, with_pip=True)
    only_uv = LOG.parent / "uv.txt"
    only_uv.write_text(pinned("uv"))
    options = ["--quiet", "--retries", "2", "--timeout", "20", "--require-hashes", "-r"]
    pip = [str(PYTHON), "-m", "pip", "install", *options]
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON), "--require-hashes", "-r"]
    by_uv = log_run(*pip, str(only_uv)) and log_run(*uv, str(LOCK))
    if not by_uv and not log_run(*pip, str(LOCK)):
        raise fail("installing the packages")
    (VENV / ".locked").touch()


def build() -> None:
    """Compile the module and put the project, editable, into ``.venv``; needs no network."""
    check_compiler()
    print(f"setup: building the compiled module (output in {LOG})", flush=True)
    os.environ["PATH"] = f"{(VENV / 'bin').resolve()}{os.pathsep}{os.environ['PATH']}"
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--force-reinstall", "-e", "."]
    if not log_run(str(PYTHON), "-m", "pip", "install", *options):
        raise fail("building the compiled module")


def lock(upgrade: bool) -> None:
    """Solve pyproject.toml for every platform, untouched by this machine's index settings."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    command = [str(VENV / "bin" / "uv"), "pip", "compile", "--quiet", "--no-config", "--universal"]
    command += ["--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--all-extras"]
    command += ["--custom-compile-command", "make lock", *(["--upgrade"] if upgrade else [])]
    if subprocess.run([*command, "pyproject.toml", "-o", str(LOCK)], env=clean).returncode:
        raise SetupFailed("the lock was not written: the reason stands above")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["install", "build", "lock"])
    parser.add_argument("--upgrade", action="store_true", help="lock: take newer versions")
    args = parser.parse_args()
    os.chdir(ROOT)
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    try:
        {"install": install, "build": build, "lock": lambda: lock(args.upgrade)}[args.step]()
    except SetupFailed as reason:
        print(f"setup: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
