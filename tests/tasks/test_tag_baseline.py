"""The baselines that stand beside a tagger's figures."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tasks.tables import dataset_of, model_of, recipe_for

from qkv.runs.evaluation import measure
from qkv.system.errors import UserError
from qkv.tasks.words import tag_baseline
from qkv.tasks.words.tag_baseline import Baselines, FeatureTagger

NAMES = [("Anna", "Berg"), ("Karl", "Lund"), ("Eva", "Moos"), ("Tom", "Hill"), ("Mia", "Ray"), ("Jan", "Kerr")]
ROWS: list[dict[str, Any]] = [
    {"words": [first, last, "saw", "may", "in", "May"], "tags": ["B-p", "I-p", "O", "O", "O", "B-t"]}
    for first, last in NAMES
] + [{"words": ["it", "was", "raining"], "tags": ["O", "O", "O"]}] * 3


def test_shape_affixes_and_neighbours_tag_words_that_are_not_known() -> None:
    tagger = FeatureTagger(ROWS)
    assert tagger([["Otto", "Wild", "saw", "may"], ["in", "May"]]) == [["B-p", "I-p", "O", "O"], ["O", "B-t"]]


def test_figures_are_those_of_the_kind_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out: list[dict[str, Any]] = [{"words": ["Otto", "Wild", "saw"], "tags": ["B-p", "I-p", "O"]}]
    baselines, fits = Baselines(), []
    monkeypatch.setattr(tag_baseline, "FeatureTagger", lambda rows: fits.append(rows) or FeatureTagger(rows))
    for _ in range(2):
        assert baselines.figures(ROWS, held_out) == {"f1_of_most_frequent_tag": 0, "f1_of_logistic_regression": 100}
    assert len(fits) == 1
    plain = [{**row, "tags": [{"O": "other"}.get(tag, "name") for tag in row["tags"]]} for row in ROWS]
    found = baselines.figures(plain, [{"words": ["Otto", "Wild", "saw"], "tags": ["name", "name", "other"]}])
    assert found["accuracy_of_most_frequent_tag"] == pytest.approx(100 / 3)
    assert found["f1_of_most_frequent_tag"] == pytest.approx(25)
    assert found["accuracy_of_logistic_regression"] == found["f1_of_logistic_regression"] == 100


@pytest.mark.parametrize("why", ["large", "not installed"])
def test_it_is_left_out(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "large":
        monkeypatch.setattr(tag_baseline, "MOST_FITTED", 30)
    else:

        def absent(rows: object) -> None:
            raise UserError("scikit-learn is not installed")

        monkeypatch.setattr(tag_baseline, "FeatureTagger", absent)
    task, dataset = dataset_of(recipe_for("token_classification", data={"tokenizer": "bytes"}, context_length=64), ROWS)
    model = model_of(dataset)
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    assert "f1_of_logistic_regression" not in evaluation.figures
    assert "f1_of_most_frequent_tag" in evaluation.figures
    wanted = ["logistic regression is left out: 45 training words times 4 tags are more than 30"]
    assert evaluation.notes == (wanted if why == "large" else [])
