"""Whole runs on real engines: what is measured is kept, what is wrong is named and gives no rate."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tbkit as tb
from tbkit import record as runs
from tbkit.cluster.shard import Weights, weights_of
from tbkit.errors import Interrupted, RankDied, RunError, UsageError
from tbkit.scale import Design

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
UNEVEN = "tensor-uneven"
BRIEF = Design(on=(1, 2), blocks=2, steps=4, warmup_blocks=1, loads=1)
FAULTS = {
    "dropped-layer": (["coverage"], "layer {layer} is missing on rank 0"),
    "swapped-head": (["logits", "place"], "first difference: layer {layer}, q_proj, rank 0: off by"),
    "missing-reduction": (["logits", "place"], "first difference: layer {layer}, o_proj, rank 0: off by"),
    "stale-row": (["logits", "place"], "first difference: layer {layer}, cache_k, rank 0: off by"),
}
EXCESS = re.compile(r"max \|Δlogit\| (\S+) at .* bound (\S+) ")


def counted(calls: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, total: calls.append((done, total))


def test_a_small_run_end_to_end(cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path) -> None:
    """Every plan on 1 and 2 nodes: done, gates OK, samples of every arm, the program's counts, a ledger that closes."""
    ticks: list[tuple[int, int]] = []
    run = tb.scale(
        cluster4, "decode", on=(1, 2), design=BRIEF, weights=tiny(), root=tmp_path, tick=counted(ticks)
    )
    record = runs.read(run.path)

    assert run.ok and record.state == "done"
    assert msgspec.json.encode(record) == msgspec.json.encode(run.record)
    assert {(g.nodes, g.plan, g.verdict) for g in record.gates} == {
        (1, "one", "OK"),
        (2, UNEVEN, "OK"),
        (2, "pipeline", "OK"),
    }
    for gate in record.gates:
        assert_clean(gate)
    assert {(a.nodes, a.plan): a.intervention for a in record.arms if a.intervention == "A"} == {
        (2, UNEVEN): "A"
    }
    found = {(a.plan, a.intervention): (a.collectives_a_step, a.bytes_a_step) for a in record.arms}
    assert found["one", "P"] == (0, 0)
    assert found[UNEVEN, "F"] == found[UNEVEN, "P"] == (6, 4 * (5 * 48 + 51))
    assert found[UNEVEN, "L"] == (6, 24) and found[UNEVEN, "C"] == found[UNEVEN, "N"] == found[
        UNEVEN, "A"
    ] == (6, 0)
    assert found["pipeline", "F"] == (2, 4 * 48 + 4)
    assert {(s.nodes, s.plan) for s in record.speedup} == {(2, UNEVEN), (2, "pipeline")}
    assert all(0 < s.low <= s.value <= s.high for s in record.speedup)
    rows = runs.samples(run.path).to_pylist()
    steps = Counter(
        (r["plan"], r["intervention"], r["rank"])
        for r in rows
        if not r["warmup"] and "/" not in r["intervention"]
    )
    assert steps == {
        (plan, arm, rank): BRIEF.blocks * BRIEF.steps
        for plan, arms, ranks in (("one", "P", [0]), (UNEVEN, "PFLCNA", [0, 1]), ("pipeline", "PF", [0, 1]))
        for arm in arms
        for rank in ranks
    }
    names = {r["intervention"] for r in rows if "/" in r["intervention"]}
    assert {"alone/q_proj", "together/q_proj", "together/segments", "link/crossing", "link/one"} <= names
    assert all(done <= total for done, total in ticks) and len(ticks) == 3 * (1 + BRIEF.blocks)
    assert record.factors["planted_fault"] == "none" and record.factors["activations"] == "float32"
    (ledger,) = tb.explain(run).ledgers
    assert (ledger.nodes, ledger.plan, ledger.reality) == (2, UNEVEN, "local")
    assert sum(t.us for t in ledger.terms) == pytest.approx(ledger.step_us.value - ledger.ideal_us, rel=1e-9)


def assert_clean(gate: Any) -> None:
    """OK, and at most half of the bound used."""
    assert gate.verdict == "OK", gate
    worst, bound = map(float, EXCESS.findall(gate.checks[1].words)[0])
    assert worst <= bound / 2


def test_no_false_alarm_in_bfloat16(cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path) -> None:
    """Without a fault the tensor plans on 2 and 3 nodes pass in bfloat16, with room to spare."""
    design = Design(on=(1, 2, 3), blocks=2, steps=2, warmup_blocks=1, loads=1, full=())
    run = tb.scale(
        cluster4, "decode", [UNEVEN, "tensor"], design=design, weights=tiny("bfloat16"), root=tmp_path
    )

    for gate in run.record.gates:
        assert_clean(gate)


def refused(run: Any, fault: str, layer: int) -> None:
    """WRONG: nothing that looks like a rate, and the place in words."""
    checks, place = FAULTS[fault]
    record = runs.read(run.path)
    (gate,) = [g for g in record.gates if g.verdict == "WRONG"]

    assert record.state == "wrong" and not run.ok
    assert record.speedup == () and record.arms == ()
    words = {c.name: c.words for c in gate.checks if not c.ok}
    assert set(checks) <= set(words)
    assert place.format(layer=layer) in " ".join(words.values())
    if "logits" in words:
        worst, bound = map(float, EXCESS.findall(words["logits"])[0])
        assert worst >= 10 * bound
    assert not [r for r in runs.samples(run.path).to_pylist() if r["nodes"] > 1]
    assert record.factors["planted_fault"] == f"{fault}:{layer}"
    with pytest.raises(RunError, match="wrong"):
        tb.explain(run)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_placed(
    cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path, fault: str, kind: str
) -> None:
    """On a small random model each fault exceeds the bound tenfold, and layer, role and rank are named."""
    design = Design(on=(1, 2), blocks=2, steps=2, warmup_blocks=1, loads=1, seed=2)
    weights = tiny(kind)
    run = tb.scale(
        cluster4, "decode", [UNEVEN], design=design, weights=weights, root=tmp_path, plant=f"{fault}:0"
    )

    refused(run, fault, 0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_in_the_real_model_is_found_and_placed(
    cluster4: Any, tmp_path: Path, fault: str
) -> None:
    """The same on the catalogue's model, in a layer in its first third."""
    design = Design(on=(2,), blocks=2, steps=2, warmup_blocks=1, loads=1, seed=2, spread_orders=1)
    weights = weights_of("smollm2-135m-instruct")
    run = tb.scale(
        cluster4, "decode", [UNEVEN], design=design, weights=weights, root=tmp_path, plant=f"{fault}:7"
    )

    refused(run, fault, 7)


def test_a_pipeline_takes_its_faults_too(cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path) -> None:
    """A head swapped and a layer dropped on the second stage are placed there; what has no reduction loses none."""
    design = Design(on=(1, 2), blocks=2, steps=2, warmup_blocks=1, loads=1, seed=2)
    for fault, place in (
        ("swapped-head:1", "layer 1, q_proj, rank 1"),
        ("dropped-layer:1", "layer 1 is missing on rank 1"),
    ):
        run = tb.scale(
            cluster4, "decode", ["pipeline"], design=design, weights=tiny(), root=tmp_path, plant=fault
        )
        assert place in " ".join(c.words for g in run.record.gates for c in g.checks if not c.ok)
    with pytest.raises(UsageError, match="reductions"):
        tb.scale(
            cluster4,
            "decode",
            ["pipeline"],
            design=design,
            weights=tiny(),
            root=tmp_path,
            plant="missing-reduction:1",
        )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"plant": "broken-heart:1"}, "dropped-layer"),
        ({"plant": "dropped-layer:2"}, "layer 0 to 1"),
        ({"plant": "dropped-layer"}, "layer 0 to 1"),
        ({"on": (1, 5)}, "at most the 4 nodes"),
        ({"on": (0,)}, "--on"),
        ({"on": ()}, "--on"),
    ],
)
def test_what_cannot_be_run_leaves_no_folder(
    cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    """An unknown fault or layer, more nodes than there are: UsageError before anything is written."""
    with pytest.raises(UsageError, match=words):
        tb.scale(cluster4, "decode", **({"design": BRIEF, "weights": tiny(), "root": tmp_path} | wrong))

    assert list(tmp_path.iterdir()) == []


def stopped(cluster: Any, weights: Weights, root: Path, action: Callable[[], None]) -> Callable[[], Any]:
    """A run during whose fourth block something happens."""
    design = Design(on=(1, 2), blocks=40, steps=12, warmup_blocks=1, loads=1, full=())

    def tick(done: int, _total: int) -> None:
        if done == 4:
            timer.start()

    timer = threading.Timer(0.05, action)
    return lambda: tb.scale(
        cluster, "decode", ["pipeline"], design=design, weights=weights, root=root, tick=tick
    )


def left(root: Path) -> Any:
    """The one folder under root: its record and its samples; the record says "failed" and has no rate."""
    (path,) = root.iterdir()
    record = runs.read(path)
    assert record.state == "failed" and record.arms == () and record.speedup == ()
    assert not list(path.glob("journal*")) and not list(path.glob("*.tmp"))
    with pytest.raises(RunError, match="failed"):
        tb.explain(path)
    return record, runs.samples(path)


def test_ctrl_c_leaves_a_folder_that_says_so(
    cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path
) -> None:
    """Interrupted; the blocks measured before are kept, the reason is noted."""
    begin = stopped(cluster4, tiny(), tmp_path / "a", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        begin()
    record, table = left(tmp_path / "a")
    assert any("stopped" in note for note in record.notes) and table.num_rows >= 4 * 12


def test_the_death_of_a_rank_leaves_a_folder_that_says_so(
    cluster4: Any, tiny: Callable[..., Weights], tmp_path: Path
) -> None:
    """RankDied; the folder keeps what was measured and names the node; the next run heals the cluster."""
    victim = cluster4.status()[0]["rank_pid"]
    begin = stopped(cluster4, tiny(), tmp_path / "a", lambda: os.kill(victim, signal.SIGKILL))
    with pytest.raises(RankDied, match="local0"):
        begin()
    record, table = left(tmp_path / "a")
    assert "local0" in " ".join(record.notes) and table.num_rows >= 4 * 12

    assert tb.scale(cluster4, "decode", ["pipeline"], design=BRIEF, weights=tiny(), root=tmp_path / "b").ok
