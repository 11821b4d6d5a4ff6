"""What is kept reads back as it was; another version and a broken file are one line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tbkit.errors import InputError
from tbkit.fabric.cards import CARDS_VERSION, Cards, keep, odd_ones, read_links, samples_of
from tbkit.fabric.cards.store import Sample
from tbkit.record import find_run, run_folders
from tests.fabric.cards.synthetic import TB4, mesh

SAMPLES = [Sample("latency", b, "mac1", "mac2", "mac1", 8, 1, [0.1115, 900.5]) for b in range(2)]


@pytest.fixture
def cards():
    made = tuple(mesh({("mac2", "mac3"): TB4}))
    return Cards(
        what="cards", cards=made, findings=odd_ones(made), id="20261201-120000-cards-0abc",
        created="2026-12-01T12:00:00+00:00", reality="published", carrier="verbs",
        nodes=("mac1", "mac2", "mac3", "mac4"), factors={"seed": 0},
    )  # fmt: skip


def test_a_measurement_reads_back_as_it_was(cards, tmp_path):
    """Cards, findings, factors, the word for what is real; the path is where it lies now."""
    kept = keep(cards, SAMPLES, tmp_path)
    assert read_links(kept.path) == kept and kept.cards == cards.cards and kept.findings
    moved = tmp_path / "moved"
    (tmp_path / "links" / cards.id).rename(moved)
    assert read_links(moved).path == str(moved) and read_links(moved / "links.json").cards == cards.cards
    assert str(tmp_path) not in (moved / "links.json").read_text()


def test_raw_samples_and_provenance_are_beside_it(cards, tmp_path):
    """Every sample to its last digit; versions and machine in environment.json; no other file."""
    folder = tmp_path / "links" / cards.id
    keep(cards, SAMPLES, tmp_path)
    table = samples_of(folder).to_pylist()
    assert [row["us"] for row in table] == [[0.1115, 900.5]] * 2 and table[1]["block"] == 1
    assert "python" in json.loads((folder / "environment.json").read_text())["versions"]
    assert {path.name for path in folder.iterdir()} == {"links.json", "samples.parquet", "environment.json"}
    assert [path.name for path in (tmp_path / "links").iterdir()] == [cards.id]


def test_it_is_no_run(cards, tmp_path):
    """``explain last`` still finds the last run: measurements of links stand apart."""
    keep(cards, SAMPLES, tmp_path)
    assert run_folders(tmp_path) == []
    with pytest.raises(Exception, match="no runs"):
        find_run("last", tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text: text.replace(f'"schema_version": {CARDS_VERSION}', '"schema_version": 99'),
            "version 99",
        ),
        (lambda text: text[:50], "links.json"),
        (lambda text: text.replace('"kind": "cards"', '"kind": "cars"'), "cars"),
        (lambda _: "[]", "links.json"),
        (lambda _: "\udcff", "links.json"),
    ],
)
def test_what_cannot_be_read_is_one_line(cards, tmp_path, change, said):
    """A newer version, a cut file, an unknown kind, something else altogether."""
    file = tmp_path / "links" / cards.id / "links.json"
    keep(cards, SAMPLES, tmp_path)
    file.write_text(change(file.read_text()), errors="surrogateescape")
    with pytest.raises(InputError) as caught:
        read_links(file.parent)
    assert said in str(caught.value) and str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_no_folder_and_no_room_are_one_line(cards, tmp_path):
    """Nothing there; a root that is a file."""
    with pytest.raises(InputError, match="can be read"):
        read_links(tmp_path / "nosuch")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        keep(cards, SAMPLES, blocked)


def test_json_holds_rows_and_cards(cards):
    """One document: perftest's rows with their cable and direction, and all behind them."""
    document = json.loads(json.dumps(cards.to_json()))
    assert {"rows", "cards", "findings", "factors", "reality", "schema_version", "kind"} <= set(document)
    first = document["rows"][0]
    assert first["cable"] == "mac1:rdma_en2 to mac2:rdma_en2" and (first["from"], first["to"]) == (
        "mac1",
        "mac2",
    )
    assert "t_typical[usec]" in first and np.isfinite(first["t_stdev[usec]"])
    assert len(document["rows"]) == 6 * (2 * (20 + 9) + 9)
