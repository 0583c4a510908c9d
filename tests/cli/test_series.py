"""Classification and regression of series: automatic recipes, reload, predictions of all kinds of inputs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Call

import qkv as library
from qkv.choosing.automatic_task import automatic_task
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.tasks.registry import build_task

SHORT = ("training.steps=12", "training.minutes=null", "training.validation.every=6", "candidates={}")
SMALL = ("model.width=16", "model.num_layers=1")


def rows(count: int = 60, channels: int = 0, gaps: bool = True) -> list[dict[str, Any]]:
    """Waves of two frequencies, of any length, with gaps."""
    rng, found = np.random.default_rng(0), []
    for i in range(count):
        time = np.arange(rng.integers(1 if i == 7 else 8, 30))
        wave = np.sin(time * (0.3 + 0.9 * (i % 2)) + rng.uniform(0, 6)) + 0.1 * rng.normal(size=len(time))
        values = [None if gaps and i % 5 == 0 and t == 3 else float(v) for t, v in zip(time, wave, strict=True)]
        if channels:
            values = [[v, float(i % 2)] for v in values]
        found.append({"wave": values, "kind": ["slow", "fast"][i % 2], "speed": 0.3 + 0.9 * (i % 2)})
    return found


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, found)))
    return path


def test_series_are_classified_from_the_command_line(qkv: Call, tmp_path: Path) -> None:
    path, run = write(tmp_path / "waves.jsonl", rows(gaps=True)), tmp_path / "run"
    said = qkv("train", "classify", "--data", path, "--label", "kind", "--out", run, *SHORT, *SMALL)
    assert said.code == 0, said.err
    assert "'wave' is taken as series (guessed)" in said.err + said.out or "wave" in said.err
    assert "accuracy of statistics" in said.out
    found = library.load(run)
    assert found.evaluation is not None
    figures = found.evaluation["splits"]["validation"]["figures"]
    assert figures["accuracy"] >= figures["accuracy_of_statistics"]
    again = library.evaluate(found)
    assert again["accuracy"] == pytest.approx(figures["accuracy"])
    assert again["loss"] == pytest.approx(figures["loss"], rel=1e-5)
    wave = json.dumps(rows()[1]["wave"])
    answered = qkv("predict", run, wave)
    assert answered.code == 0, answered.err
    assert "fast" in answered.out
    table = qkv("predict", run, "--data", path)
    answers = [row["answer"] for row in csv.DictReader(io.StringIO(table.out))]
    assert len(answers) == 60
    assert qkv("predict", run, "hello").code == 2


def test_arrays_of_any_shape_are_predicted_in_python(tmp_path: Path) -> None:
    values, speed = np.random.default_rng(0).normal(size=(40, 6, 2)), np.arange(40) % 4
    values[:, :, 0] += speed[:, None]
    quiet: dict[str, Any] = {"on_event": lambda _: None}
    run = library.train(
        {"series": values, "speed": speed}, tmp_path / "run", (*SHORT, *SMALL), task="regress", value="speed", **quiet
    )
    many = library.predict(run, values[:3])
    (one,) = library.predict(run, [{"series": values[0]}])
    assert many[0]["answer"] == pytest.approx(one["answer"])
    assert len(many) == 3


def test_rows_of_several_lengths_agree_alone_and_together(tmp_path: Path) -> None:
    path = write(tmp_path / "waves.jsonl", rows(channels=2))
    quiet: dict[str, Any] = {"on_event": lambda _: None}
    run = library.train(str(path), tmp_path / "run", (*SHORT, *SMALL), task="classify", label="kind", **quiet)
    some = [row["wave"] for row in rows(channels=2)[:9]]
    together = library.predict(run, [{"series": each} for each in some])
    for each, found in zip(some, together, strict=True):
        (alone,) = library.predict(run, [{"series": each}])
        assert alone["probability"] == pytest.approx(found["probability"], abs=1e-5)


def recipe_of(path: Path, *changes: str) -> Recipe:
    return automatic_task("classification", {"source": str(path), "columns": {"label": "kind"}}, changes)


def test_channels_apart_are_refused_for_a_row_of_several(tmp_path: Path) -> None:
    path = write(tmp_path / "waves.jsonl", rows(channels=2))
    recipe = recipe_of(path, "model.frontend.channels=apart")
    with pytest.raises(SpecError, match="predicted from all of its channels"):
        build_task(recipe.task, recipe.data).open(recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: {**row, "wave": []}, "has no rows|no row|no series|empty"),
        (lambda row: {**row, "wave": [None]}, "the series holds no number"),
        (lambda row: {**row, "wave": ["a", "b"]}, "wave|series|text"),
        (lambda row: {**row, "wave": [1, 1e300]}, "exceeds 1e"),
    ],
)
def test_hostile_rows_are_refused_in_one_sentence(qkv: Call, tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path / "waves.jsonl", [change(row) for row in rows(30)])
    typed = ("train", "classify", "--data", path, "--series", "wave", "--label", "kind", "--out", tmp_path / "run")
    said = qkv(*typed, *SHORT, *SMALL)
    assert said.code == 2
    assert any(part in said.err for part in message.split("|")), said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


def test_some_bad_rows_are_left_out_and_told(qkv: Call, tmp_path: Path) -> None:
    found = rows(60, gaps=False)
    found[4]["wave"], found[11]["wave"], found[21]["wave"] = [None], [[1, 2], [3]], [2.0] * 20
    path = write(tmp_path / "waves.jsonl", found)
    said = qkv("train", "classify", "--data", path, "--label", "kind", "--out", tmp_path / "run", *SHORT, *SMALL)
    assert said.code == 0, said.err
    assert "the series holds no number" in said.err + said.out
