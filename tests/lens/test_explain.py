"""Words that mattered for an answer: each variant is what predict says of the text without the word."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of

import qkv
from qkv.runs.inference.calibration import CALIBRATION
from qkv.runs.run import Run
from qkv.system.errors import UserError


def run_of(task: str, folder: Path, **options: Any) -> Run:
    rows = rows_of(task, 20)
    for row in rows if options.get("data") else ():
        row["pair"] = "on the mat"
    _, dataset = dataset_of(recipe_for(task, **options), rows)
    return Run(folder, dataset.recipe, model_of(dataset, 0.3), dataset.vocabulary, [], 7)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("the red  cat sat", ["red  cat sat", "the cat sat", "the red  sat", "the red  cat"]),
        (" a dog ", [" dog", " a"]),
        ("cat", ["at", "ct", "ca"]),
    ],
)
def test_a_change_is_that_of_predict_without_the_word(text: str, without: list[str], tmp_path: Path) -> None:
    run = run_of("classification", tmp_path)
    (tmp_path / CALIBRATION).write_text('{"step": 7, "temperature": 2.0}')
    (found,) = qkv.explain(run, text)
    (plain,) = qkv.predict(run, text)
    assert found["answer"] == plain["answer"]
    assert found["probabilities"] == pytest.approx(plain["probabilities"])
    others = [qkv.predict(run, other)[0]["probabilities"][plain["answer"]] for other in without]
    wanted = [math.log(p / plain["probability"]) for p in others]
    assert [word["change"] for word in found["words"]] == pytest.approx(wanted, abs=1e-5)
    assert [word["word"] for word in found["words"]] == (text.split() if " " in text else list(text))
    assert any(abs(change) > 1e-3 for change in wanted)


def test_words_of_both_texts_of_a_pair(tmp_path: Path) -> None:
    run = run_of("classification", tmp_path, data={"columns": {"pair": "pair"}})
    (found,) = qkv.explain(run, {"text": "the cat", "pair": "a dog ran"})
    assert [(word["input"], word["word"]) for word in found["words"]] == [
        ("text", "the"),
        ("text", "cat"),
        ("pair", "a"),
        ("pair", "dog"),
        ("pair", "ran"),
    ]
    other = qkv.predict(run, {"text": "the cat", "pair": "a ran"})[0]["probabilities"][found["answer"]]
    assert found["words"][3]["change"] == pytest.approx(math.log(other / found["probability"]), abs=1e-5)


def test_a_number_changes_by_a_difference(tmp_path: Path) -> None:
    run = run_of("regression", tmp_path)
    (found,) = qkv.explain(run, "the cat sat")
    without = [qkv.predict(run, text)[0]["value"] for text in ("cat sat", "the sat", "the cat")]
    assert [word["change"] for word in found["words"]] == pytest.approx([v - found["value"] for v in without], abs=1e-4)


def test_what_cannot_be_explained_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the input has a single word; the influence of words needs at least two"):
        qkv.explain(run_of("classification", tmp_path), "a")
    with pytest.raises(UserError, match="the task 'token_classification' predicts neither"):
        qkv.explain(run_of("token_classification", tmp_path), "the cat")
