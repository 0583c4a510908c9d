"""``qkv predict --data --out`` on many rows: what was answered before a stop is not computed again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call

import qkv as package
from qkv.runs.inference import predict as prediction
from qkv.runs.inference.partial_answers import ENDING

ROWS = 600
SHORT = ("training.steps=2", "training.batch_size=2", "training.validation.batches=1", "candidates={}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    rows = [{"text": f"a {word} film {i}", "label": word} for i in range(8) for word in ("good", "bad")]
    package.train(rows, task="classify", out=folder / "run", overrides=SHORT, on_event=lambda _: None)
    return folder / "run"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("text\n" + "".join(f"a film of {i} minutes\n" for i in range(ROWS)))
    return path


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of rows of each call of the prediction; the list may hold the number of calls after which it stops."""
    counts, plain = list[int](), prediction.predict

    def counted(run: Any, rows: Sequence[Any], *more: Any) -> Any:
        if counts == [256]:
            counts.append(0)
            raise KeyboardInterrupt
        counts.append(len(rows))
        return plain(run, rows, *more)

    monkeypatch.setattr(prediction, "predict", counted)
    return counts


@pytest.mark.parametrize("cut", [False, True])
def test_a_stopped_prediction_goes_on_after_its_last_answers(
    qkv: Call, run: Path, table: Path, predicted: list[int], cut: bool
) -> None:
    out = table.with_name("out.jsonl")
    partial = out.with_name(out.name + ENDING)
    assert qkv("predict", run, "--data", table, "--out", out).code == 130
    assert not out.exists()
    assert len(partial.read_text().splitlines()) == 1 + 256
    if cut:  # as a crash in the middle of a line leaves it
        with partial.open("a") as file:
            file.write('{"answer": "go')
    said = qkv("predict", run, "--data", table, "--out", out)
    assert (said.code, predicted) == (0, [256, 0, 256, 88])
    assert "256 of 600 answers are already in" in said.err
    assert not partial.exists()
    whole = table.with_name("whole.jsonl")
    assert qkv("predict", run, "--data", table, "--out", whole).code == 0
    resumed, plain = ([json.loads(line) for line in path.read_text().splitlines()] for path in (out, whole))
    assert len(resumed) == ROWS
    assert [(row["text"], row["answer"]) for row in resumed] == [(row["text"], row["answer"]) for row in plain]


def test_answers_to_another_table_are_computed_anew(qkv: Call, run: Path, table: Path, predicted: list[int]) -> None:
    out = table.with_name("out.jsonl")
    assert qkv("predict", run, "--data", table, "--out", out).code == 130
    table.write_text(table.read_text().replace("film of 3 minutes", "film of three minutes"))
    assert qkv("predict", run, "--data", table, "--out", out).code == 0
    assert sum(predicted[2:]) == ROWS
    assert len(out.read_text().splitlines()) == ROWS


def test_few_rows_and_no_file_leave_nothing_beside_the_output(qkv: Call, run: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    few.write_text("text\na film\n")
    assert qkv("predict", run, "--data", few, "--out", tmp_path / "few.jsonl").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"few.csv", "few.jsonl"}
