"""``import tbkit`` gives these names, and loads nothing heavy until one of them is used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import tbkit
from tbkit import errors

VERBS = ["connect", "explain", "plan", "quickstart", "scale", "shard"]
ERRORS = [
    "BufferRejected",
    "ClusterError",
    "ConnectFailed",
    "CorruptFrame",
    "DeadlinePassed",
    "EngineDied",
    "FabricError",
    "FabricTimeout",
    "InputError",
    "Interrupted",
    "NotApplied",
    "LinkFailed",
    "PeerDied",
    "PeerSilent",
    "PlanError",
    "RankDied",
    "RunCutShort",
    "RunError",
    "TbkitError",
    "UsageError",
]
IPYTHON = ["load_ipython_extension", "unload_ipython_extension"]
HEAVY = ["ipyparallel", "mlx", "mlx_lm", "numpy", "pandas", "plotly", "scipy", "zmq"]


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(out.stdout.splitlines()[-1]))


def test_public_names_are_these():
    """A name that comes or goes is a decision: it changes this list and docs/design.md section 9."""
    assert sorted(tbkit.__all__) == sorted([*VERBS, *ERRORS, *IPYTHON, "__version__"])


def test_dir_shows_the_public_names():
    """Tab completion in a notebook offers what is there, before it is loaded."""
    assert set(tbkit.__all__) <= set(dir(tbkit))


@pytest.mark.parametrize("name", [*VERBS, *IPYTHON])
def test_each_verb_is_callable_and_documented(name):
    """Every verb resolves, stays what it was once its module is loaded, and says what it does."""
    getattr(tbkit, name)
    verb = getattr(tbkit, name)

    assert callable(verb)
    assert (verb.__doc__ or "").strip()


def test_the_whole_error_tree_is_public():
    """Every class of tbkit.errors is reachable as tb.NAME and is the same class."""
    tree = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]

    assert sorted(tree) == sorted(ERRORS)
    assert all(getattr(tbkit, name) is getattr(errors, name) for name in ERRORS)


def test_an_unknown_name_is_an_attribute_error():
    """The lazy look-up says which module lacks which name."""
    with pytest.raises(AttributeError, match=r"tbkit.*no_such_name"):
        _ = tbkit.no_such_name


def test_version_is_the_installed_one():
    """The version of the code and of the project's metadata are one."""
    assert tbkit.__version__ == version("tbkit")


def test_import_loads_nothing_heavy():
    """``import tbkit`` alone stays light: no mlx, plotly, pandas, nor any engine."""
    assert not modules_after("import tbkit") & set(HEAVY)


def test_importing_the_errors_loads_nothing_heavy():
    """``except tb.TbkitError`` costs no import of the rooms."""
    assert not modules_after("import tbkit as tb; tb.TbkitError") & set(HEAVY)


def test_loading_the_extension_loads_no_mlx_plotly_or_pandas():
    """``%load_ext tbkit`` registers the magics and nothing more."""
    start = "from IPython.core.interactiveshell import InteractiveShell as Shell"
    load = "Shell.instance().run_line_magic('load_ext', 'tbkit')"

    assert not modules_after(f"{start}; {load}") & {"mlx", "mlx_lm", "pandas", "plotly"}
