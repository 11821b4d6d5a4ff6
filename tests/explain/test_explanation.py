"""What is explained, what is refused, the laws, and that a stranger's record needs no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbkit.errors import InputError, RunCutShort, RunError, UsageError
from tbkit.explain import explain
from tbkit.record import Gate, SpeedUp

ROOT = Path(__file__).parents[2]


def test_a_wrong_run_is_not_explained(planted: Any, make: Any, wrong_gate: Gate) -> None:
    """RunError that says WRONG and where the fault is, exit 1."""
    with pytest.raises(RunError, match="layer 7, o_proj, rank 1") as caught:
        explain(make(planted.base(), "wrong", gates=(wrong_gate,)))

    assert caught.value.exit_code == 1 and "wrong" in str(caught.value)


def test_a_failed_run_and_one_cut_short_are_told_apart(planted: Any, make: Any) -> None:
    """A sealed failure is a RunError, a run that never ended a RunCutShort."""
    with pytest.raises(RunError, match="failed"):
        explain(make(planted.base(), "failed"))
    with pytest.raises(RunCutShort):
        explain(make(planted.base(), "running"))


def test_what_is_no_run_is_said(planted: Any, make: Any, tmp_path: Path) -> None:
    """An unknown id or no run at all is a UsageError, a folder that is none and a broken record an InputError."""
    with pytest.raises(UsageError):
        explain("last", root=tmp_path / "none")
    path = make(planted.base())
    with pytest.raises(UsageError, match="20990101"):
        explain("20990101-000000-decode-0000", root=tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InputError):
        explain(other)
    (path / "record.json").write_text("{")
    with pytest.raises((InputError, RunCutShort)):
        explain(path)


def test_a_run_is_found_by_folder_id_and_last(planted: Any, make: Any, tmp_path: Path) -> None:
    """Three spellings, one explanation."""
    make(planted.base())
    path = make(planted.arms() + planted.base())
    found = [explain(path), explain(path.name, root=tmp_path), explain("last", root=tmp_path)]

    assert {why.record.id for why in found} == {path.name}
    assert len({str(why.to_json()) for why in found}) == 1


def test_a_run_without_a_ledger_still_has_its_laws(
    planted: Any, make: Any, speedup: Callable[..., SpeedUp]
) -> None:
    """No plan has all arms: words and the next experiment say so."""
    why = explain(make(planted.base(), speedup=(speedup(2, 1.5),)))

    assert why.ledgers == () and "no ledger" in why.words and "--on 1,2" in why.next_experiment
    assert [row["value"] for row in why.laws["karp_flatt"]] == pytest.approx([1 / 3])


@pytest.mark.parametrize(
    ("nodes", "value", "e", "digits"),
    [
        (2, 1.8, 0.111, 3),
        (4, 3.2, 0.083, 3),
        (4, 2.918, 0.124, 3),
        (4, 24.6 / 16, 0.534, 3),
        (2, 98 / 80, 0.633, 3),
    ],
)
def test_karp_flatt_of_published_speed_ups(
    planted: Any, make: Any, speedup: Callable[..., SpeedUp], nodes: int, value: float, e: float, digits: int
) -> None:
    """(1/S - 1/p)/(1 - 1/p) as the published figures give it; no flag where there is a speed-up."""
    (row,) = explain(make(planted.base(), speedup=(speedup(nodes, value),))).laws["karp_flatt"]

    assert round(row["value"], digits) == e and row["words"] == ""


def test_a_slowdown_is_flagged_and_the_interval_turns_round(
    planted: Any, make: Any, speedup: Callable[..., SpeedUp]
) -> None:
    """80 to 48 tokens/s on 2 gives e = 2.33: the law does not apply; low of S is high of e."""
    laws = explain(make(planted.base(), speedup=(speedup(2, 48 / 80, 0.5, 0.8),))).laws
    (row,) = laws["karp_flatt"]

    assert row["value"] == pytest.approx(2.333, abs=1e-3) and "slowdown" in row["words"]
    assert (row["low"], row["high"]) == pytest.approx((1.5, 3.0))
    assert "cannot identify" in laws["usl"]["refused"]


def test_the_next_experiment_follows_from_what_is_open(planted: Any, make: Any) -> None:
    """An unresolved residual asks for its blocks; else the largest term is looked into."""
    rows = planted.base() + planted.sources() + [s for s in planted.arms() if s.intervention != "P"]
    for block, us in enumerate((62.0, 96.0, 73.0, 97.5)):
        rows += planted.steps("tensor-uneven", "P", block, (us, us - 1))
    why = explain(make(rows))
    assert f"--blocks {why.ledgers[0].residual.blocks_needed}" in why.next_experiment
    closed = explain(make(planted.arms(P=planted.ARMS["F"]) + planted.base() + planted.sources()))
    assert "transfer" in closed.next_experiment


def test_a_strangers_record_is_judged_without_cluster_or_scale(planted: Any, make: Any) -> None:
    """Explaining loads neither tbkit.cluster nor tbkit.scale, ipyparallel nor mlx."""
    path = make(planted.arms() + planted.base() + planted.sources())
    code = "import sys, tbkit as tb\nwhy = tb.explain(sys.argv[1])\nprint(why)\n"
    code += "rooms = ('tbkit.cluster', 'tbkit.scale', 'tbkit.rank', 'ipyparallel', 'mlx')\n"
    code += "print([room for room in rooms if room in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
