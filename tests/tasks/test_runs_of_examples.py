"""Whole runs on small tables: killed in the middle and gone on with bit for bit; learned, evaluated, asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.tables import Crash, crash_at, recipe_for, rows_of, translating, write_table
from tests.training.kill_storm import differences, ignore

import qkv
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Regression
from qkv.system.errors import UserError
from qkv.training.loop import train

DROPOUT = [{"branches": ["attention(2, mask=full, dropout=0.1)", "feed_forward(16)"], "dropout": 0.1}]
TASKS = {
    "classification": "classification(label_smoothing=0.1)",
    "regression": "regression",
    "token_classification": "token_classification",
    "question_answering": "question_answering(stride=6, max_question_tokens=9)",
}
BATCHINGS = {"classification": "token_buckets(tokens=80)", "regression": "random_crops"}


def small_recipe(task: str, folder: Path, count: int = 14, **training: Any) -> Recipe:
    source = write_table(folder / f"{task}.jsonl", rows_of(task, count))
    words = {"tokenizer": "word_list(60, min_frequency=1)"}
    settings = {"optimizer": "muon(lr=0.02)", "schedule": "cosine(warmup=2)", **training}
    if task in TASKS:
        data = {**words, "batching": BATCHINGS.get(task, "length_buckets")}
        return recipe_for(TASKS[task], source, data, settings, context_length=24, blocks=DROPOUT)
    data = {**words, "batching": "token_buckets(tokens=60)"}
    return translating(task == "translation", task, source=source, data=data, training=settings).changed(
        sample={"max_new_tokens": 4}
    )


def tagger_of_words(folder: Path, count: int = 14, **training: Any) -> Recipe:
    """Tags of words that are read as features, without a tokenizer."""
    model = {"frontend": "words", "head": "crf(dropout=0.1)", "context_length": 6, "blocks": DROPOUT}
    source = write_table(folder / "tags.jsonl", rows_of("token_classification", count))
    return recipe_for("token_classification", source, training=training, **model)


@pytest.mark.parametrize("task", [*TASKS, "translation", "summarization", "words"])
def test_a_run_that_was_cut_goes_on_bit_for_bit(task: str, tmp_path: Path) -> None:
    recipe = small_recipe(task, tmp_path) if task != "words" else tagger_of_words(tmp_path)
    train(recipe, tmp_path / "straight", on_event=ignore)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "cut", on_event=crash_at(5))
    train(recipe, tmp_path / "cut", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "cut") == []


@pytest.mark.parametrize(
    ("task", "figure", "least"),
    [("classification", "accuracy", 90), ("token_classification", "f1", 90), ("question_answering", "exact_match", 40)],
)
def test_a_run_learns_and_answers(task: str, figure: str, least: float, tmp_path: Path) -> None:
    recipe = small_recipe(task, tmp_path, 80, steps=40, batch_size=16, validation={"every": 40, "batches": None})
    run = train(recipe, tmp_path / "run", on_event=ignore)
    figures = qkv.evaluate(run, "train")
    assert figures[figure] >= least
    validation = qkv.evaluate(run)
    assert validation["loss"] == pytest.approx(run.val_loss, rel=1e-5)
    few = qkv.evaluate(run, "train", batches=1)
    assert few["targets"] < figures["targets"]
    row = rows_of(task, 1)[0]
    (answer,) = qkv.predict(
        tmp_path / "run", {name: row[name] for name in row if name not in ("label", "tags", "answers")}
    )
    assert isinstance(answer["answer"], str)


def test_a_tagger_of_words_has_no_tokenizer(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "optimizer": "adamw(lr=0.02)",
        "validation": {"every": 60, "batches": None, "best": "f1"},
    }
    recipe = tagger_of_words(tmp_path, 80, steps=60, batch_size=16, **settings)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    assert sorted(path.name for path in (tmp_path / "run").glob("*.json")) == [
        "evaluation.json",
        "labels.json",
        "processors.json",
    ]
    loaded = qkv.load(tmp_path / "run")
    assert qkv.evaluate(loaded) | {"seconds": 0} == qkv.evaluate(run) | {"seconds": 0}
    assert qkv.evaluate(loaded)["f1"] > 60
    (answer,) = qkv.predict(loaded, "the red cat sat on the mat")
    assert answer["answer"].startswith("the [red cat](thing) sat")
    assert answer["note"] == "the last 1 of 7 words were truncated: the sentence is longer than the model can read"
    with pytest.raises(UserError, match="the run has no tokenizer"):
        qkv.generate(loaded, "the red")


def test_a_run_keeps_the_units_of_its_numbers(tmp_path: Path) -> None:
    recipe = small_recipe(
        "regression", tmp_path, 80, steps=60, batch_size=16, validation={"every": 60, "batches": None}
    )
    run = train(recipe, tmp_path / "run", on_event=ignore)
    task = qkv.load(tmp_path / "run").recipe.task
    assert isinstance(task, Regression)
    assert task.mean is not None
    assert abs(task.mean - 10) < 3
    figures = qkv.evaluate(run, "train")
    assert figures["rmse"] < 0.7 * figures["rmse_of_mean"]
    assert figures["pearson_r"] > 0.7
    (answer,) = qkv.predict(run, "cat cat cat")
    assert math.isfinite(answer["value"])
    assert answer["answer"] == f"{answer['value']:.4g}"


def test_another_table_under_a_run_is_noticed(tmp_path: Path) -> None:
    recipe = small_recipe("classification", tmp_path)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "run", on_event=crash_at(7))
    rows = rows_of("classification", 14)
    rows[3]["label"] = "none" if rows[3]["label"] == "animal" else "animal"
    write_table(tmp_path / "classification.jsonl", rows)
    with pytest.raises(
        UserError, match=r"the data or a file of the vocabulary was changed; restore it, or name another folder"
    ):
        train(recipe, tmp_path / "run", on_event=ignore)


def test_what_is_missing_from_a_question_is_named(tmp_path: Path) -> None:
    run = train(small_recipe("question_answering", tmp_path, steps=1), tmp_path / "run", on_event=ignore)
    with pytest.raises(UserError, match=r"'question_answering' predicts from question, context; 'context' is missing"):
        qkv.predict(run, "where is red")
