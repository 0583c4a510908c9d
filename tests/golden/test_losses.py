"""The script of golden losses notices what changes, and nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.golden.losses import SHORT, SOURCES, Case, cases, differences, measure

RECIPE = """\
data: {source: text.txt, tokenizer: characters, batching: random_crops}
model: {width: 8, context_length: 8, blocks: [{branches: ["attention(2)", gru]}]}
training: {batch_size: 2, schedule: constant, validation: {batches: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


def figures(folder: Path, *changes: str) -> dict[str, Any]:
    """What the script writes of a tiny recipe, from a run folder that is not there yet."""
    name = str(len(list(folder.glob("runs/*"))))
    found = measure(folder, [Case(name, ("train", "tiny.yaml", *SHORT, *changes))])
    return {**found, "data": {}, "cases": {"tiny": found["cases"][name]}}


def test_equal_when_run_twice_and_different_with_another_seed(folder: Path) -> None:
    first, again, other = figures(folder), figures(folder), figures(folder, "training.seed=5")
    assert len([key for key, row in first["cases"]["tiny"]["rows"].items() if "loss" in row]) == 6
    assert first["cases"]["tiny"]["cost"]["parameters"]["total"] > 0
    assert first["cases"]["tiny"]["exam"]["figures"]["loss"] > 0
    assert differences(first, again) == []
    rows = differences(first, other)
    assert {(row[0], row[1].split(" / ")[0]) for row in rows} >= {("tiny", "rows"), ("tiny", "exam")}
    assert "step 1" in rows[0][1]


def test_the_last_digit_of_one_step_is_noticed(folder: Path) -> None:
    first = figures(folder)
    changed = copy.deepcopy(first)
    row = next(row for key, row in changed["cases"]["tiny"]["rows"].items() if key.startswith("step 4"))
    row["loss"] *= 1 + 1e-15
    (found,) = differences(first, changed)
    assert found[0] == "tiny"
    assert found[1].startswith("rows / step 4")
    assert found[1].endswith("/ loss")


def test_a_case_that_fails_is_a_difference(folder: Path) -> None:
    failed = figures(folder, "model.width=7")
    assert "width" in failed["cases"]["tiny"]["error"]
    assert differences(figures(folder), failed)[0][0] == "tiny"


def test_every_recipe_has_data() -> None:
    found = cases()
    assert len({case.name for case in found}) == len(found) > 30
    made = {source for source, _ in SOURCES.values()}
    for case in found:
        sources = [word.removeprefix("data.source=") for word in case.typed if word.startswith("data.source=")]
        assert set(sources) <= made
