"""A run measured on a whole file it was not trained with, and baselines fitted on its training part alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.running import BYTE_PAIRS, CAUSAL, SEES_ALL, VECTORS, recipe_of
from tests.tasks.tables import recipe_for
from tests.training.kill_storm import ignore

import qkv
from qkv.runs.evaluation import evaluate
from qkv.runs.run import Run
from qkv.runs.storage.load import load
from qkv.system.errors import UserError
from qkv.tasks.baselines.baselines import ngram_accuracy
from qkv.training.loop import train

RIGHT, WRONG = ("good", "up"), ("bad", "down")


def table(path: Path, rows: list[tuple[str, str]], names: str = "text,label") -> Path:
    path.write_text("\n".join([names, *(",".join(row) for row in rows)]) + "\n")
    return path


def rows(count: int, flipped: bool = False, seed: int = 0) -> list[tuple[str, str]]:
    """Texts whose first word tells the label; ``flipped`` tells the other one. The labels are not equally frequent."""
    draw = random.Random(seed)
    kinds = [draw.random() < 0.7 for _ in range(count)]
    return [
        (f"{'good' if kind else 'bad'} film number {i}", "up" if kind != flipped else "down")
        for i, kind in enumerate(kinds)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    source = table(tmp_path / "train.csv", rows(80))
    recipe = recipe_for("classification", source, data={"tokenizer": "words(60)"}, training={"steps": 2})
    train(recipe, tmp_path / "run", on_event=ignore)
    return load(tmp_path / "run")


def test_all_of_the_file_is_measured_and_baselines_know_the_training_part_alone(run: Run, tmp_path: Path) -> None:
    other = rows(50, flipped=True, seed=1)
    evaluation = evaluate(run, data=str(table(tmp_path / "other.csv", other)))
    assert evaluation.figures["targets"] == 50
    # In the measured rows the words tell the other label: only what was fitted on them could be right.
    assert evaluation.figures["accuracy_of_ngrams"] == 0
    usual = 100 * sum(label == "up" for _, label in other) / 50
    assert evaluation.figures["accuracy_of_most_frequent_label"] == pytest.approx(usual)
    answers = [answer["answer"] for answer in qkv.predict(run, *(text for text, _ in other))]
    right = 100 * sum(answer == label for answer, (_, label) in zip(answers, other, strict=True)) / 50
    assert evaluation.figures["accuracy"] == pytest.approx(right)
    assert qkv.evaluate(run, data=tmp_path / "other.csv")["accuracy"] == evaluation.figures["accuracy"]


def test_other_columns_another_format_and_labels_that_the_run_does_not_know(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    known = [{"sentence": text, "stars": label} for text, label in rows(20)]
    strange = [{"sentence": "a film", "stars": label} for label in ("sideways", "sideways", "none")]
    path.write_text("\n".join(map(json.dumps, known + strange)))
    with pytest.raises(UserError) as caught:
        evaluate(run, data=str(path))
    assert str(caught.value) == (
        f"{path} has no column 'text', which the run was trained on; "
        "name the column to read with data.columns.text=NAME"
    )
    named = ["data.columns={text: sentence, label: stars}"]
    figures: Any = qkv.evaluate(run, data=path, overrides=named)
    assert figures["targets"] == 20
    assert figures["accuracy_of_ngrams"] == 100
    assert any("3 of 23 rows" in note and "'sideways', 'none'" in note for note in figures.notes)
    path.write_text("\n".join(map(json.dumps, strange)))
    with pytest.raises(UserError, match="no label of"):
        qkv.evaluate(run, data=path, overrides=named)


def test_inputs_that_the_run_does_not_know_are_noted(run: Run, tmp_path: Path) -> None:
    (known,) = qkv.predict(run, "good film number 1")
    assert "note" not in known
    (strange,) = qkv.predict(run, "ผมชอบกิน ข้าวกับ ปลาทุกวัน")
    assert "input tokens are not in the run's vocabulary, so the answer is unreliable" in strange["note"]
    evaluation = evaluate(run, data=str(table(tmp_path / "other.csv", [("ผมชอบ กิน", "up"), ("ข้าว กับ", "down")])))
    assert any("% of the tokens of the texts are unknown to the run" in note for note in evaluation.notes)


def test_a_table_in_memory_without_the_column_of_the_training_is_refused(run: Run) -> None:
    with pytest.raises(
        UserError, match=r"has no column 'text', .* name the column to read with columns=\{'text': NAME\}"
    ):
        qkv.predict(run, {"date": ["2023-01-10", "2023-01-11"], "close": [1, 2]})
    with pytest.raises(UserError, match="has no column 'text'"):
        qkv.evaluate(run, data={"date": ["2023-01-10", "2023-01-11"], "label": ["up", "down"]})
    assert qkv.predict(run, {"said": ["good film"]}, columns={"text": "said"})[0]["answer"] in ("up", "down")


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_without_the_training_part_there_is_no_fitted_baseline(run: Run, tmp_path: Path, how: str) -> None:
    source = tmp_path / "train.csv"
    other = table(tmp_path / "other.csv", rows(30, seed=2))
    if how == "gone":
        source.unlink()
    else:
        table(source, rows(80, flipped=True))
    evaluation = evaluate(run, data=str(other))
    assert evaluation.figures["targets"] == 30
    assert not [name for name in evaluation.figures if "_of_" in name]
    assert any("baselines fitted on its training split are omitted" in note for note in evaluation.notes)


def test_a_tagger_and_its_most_frequent_tags(tmp_path: Path) -> None:
    def conll(name: str, tag: str) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(f"the\tO\ncat\t{tag}\nsat\tO\nnumber{i}\tO\n" for i in range(30)))
        return path

    recipe = recipe_for(
        "token_classification", conll("train.conll", "B-animal"), data={"tokenizer": "words(40)"}, training={"steps": 1}
    )
    train(recipe, tmp_path / "run", on_event=ignore)
    evaluation = evaluate(load(tmp_path / "run"), data=str(conll("same.conll", "B-animal")))
    assert evaluation.figures["f1_of_most_frequent_tag"] == 100
    (tmp_path / "other.conll").write_text("\n".join("the\tB-animal\ncat\tO\n" for _ in range(9)))
    evaluation = evaluate(load(tmp_path / "run"), data=str(tmp_path / "other.conll"))
    assert evaluation.figures["f1_of_most_frequent_tag"] == 0


@pytest.mark.parametrize(
    ("task", "model"), [("next_token", CAUSAL), ("masked_tokens", SEES_ALL), ("skip_gram", VECTORS)]
)
def test_a_text(task: str, model: dict[str, Any], tmp_path: Path) -> None:
    words = {"tokenizer": "word_list(60, min_frequency=1)"} if task == "skip_gram" else {"tokenizer": BYTE_PAIRS}
    recipe = recipe_of(task, model, tmp_path, **words)
    train(recipe, tmp_path / "run", on_event=ignore)
    run = load(tmp_path / "run")
    whole = (tmp_path / "text.txt").read_text()
    (tmp_path / "other.txt").write_text(whole[: len(whole) // 3])
    evaluation = evaluate(run, data=str(tmp_path / "other.txt"))
    if task == "next_token":
        ids = run.tokenizer.encode(whole[: len(whole) // 3])
        assert evaluation.figures["targets"] == len(ids) - 1
    assert evaluation.figures["targets"] > evaluate(run).figures["targets"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"split": "valid"}, "split: there is no split 'valid'; allowed: test, train, validation"),
        ({"batches": 0}, "batches: 0 given, but it should be at least 1; leave it out for the whole split"),
    ],
)
def test_arguments_of_an_evaluation_are_checked_before_the_run_is_opened(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=f"^{sentence}$"):
        qkv.evaluate("nowhere", **arguments)


def test_a_part_and_a_file_are_not_both_measured(run: Run) -> None:
    with pytest.raises(
        UserError, match=r"split selects part of the run's own data, and data evaluates on .*; use only one of them"
    ):
        qkv.evaluate(run, split="test", data="other.csv")


def test_a_task_that_draws_its_data_reads_no_file(tmp_path: Path) -> None:
    recipe = recipe_of("sorting(length=3, high=9)", {**SEES_ALL, "head": "tokens"})
    train(recipe, tmp_path / "run", on_event=ignore)
    with pytest.raises(UserError, match="reads no file"):
        evaluate(load(tmp_path / "run"), data="other.csv")


def test_the_baseline_is_that_of_other_rows() -> None:
    texts, labels = zip(*rows(40), strict=True)
    assert ngram_accuracy(texts, labels, texts, labels) == 100
