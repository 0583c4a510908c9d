"""``qkv compare``: table, JSON, page and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

SMALL = ("training.steps=2", "training.validation.every=2", "training.validation.batches=1")


def test_it_prints_a_table_and_writes_a_page(folder: Path, qkv: Call, tmp_path: Path) -> None:
    line = ("compare", folder / "tiny.yaml", "plain", "gru: blocks.*.mixer=gru", *SMALL, "--seeds", 2, "--rates", "1")
    said = qkv(*line, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    rows = {row.split()[0]: row for row in said.out.splitlines() if row}
    assert {"plain", "gru", "report:"} <= rows.keys()
    assert "±" in rows["gru"]
    assert "4/4 runs" in said.err
    content = json.loads(qkv(*line, "--out", tmp_path / "out", "--json").out)
    assert [entry["name"] for entry in content["entries"]] == ["plain", "gru"]
    assert content == json.loads((tmp_path / "out" / "results.json").read_text())
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "tiny.yaml: this file is no comparison"),
        (("a", "a"), "the entry 'a' is given twice"),
        (("a", "b: model.width"), "there is no '=' in it"),
        (("a", "--seeds", "0"), "--seeds: 0 given"),
        (("a", "--rates", "1;2"), "--rates: '1;2' given, but it should be a list of numbers"),
        (("a", "--equal", "flop"), "equal: 'flop' given"),
        (("a", "--knob", "a"), "--knob: 'a' given"),
        (("a", "--jobs", "0"), "jobs: 0 given"),
    ],
)
def test_refusals(options: tuple[str, ...], sentence: str, folder: Path, qkv: Call, tmp_path: Path) -> None:
    said = qkv("compare", folder / "tiny.yaml", *options, "--out", tmp_path / "out")
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert not (tmp_path / "out").exists()
