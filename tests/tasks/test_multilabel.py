"""Several labels a row: how cells are read, the loss, the figures, and the answer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from tests.data.records.cases import everything, read, write
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of
from tests.tasks.test_runs_of_examples import DROPOUT
from tests.training.kill_storm import ignore

import qkv
from qkv.data.records.model import Role
from qkv.runs.evaluation import measure
from qkv.spec.files.overrides import override
from qkv.system.errors import UserError
from qkv.tasks.baselines.linear import by_scales, label_set_solver
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.labels.multilabel import label_set_scores
from qkv.training.loop import train

ROWS = rows_of("multilabel", 24)
SPACE = ["data.label_separator=' '"]
LABELS = (Role("text", "text", ("text",)), Role("labels", "labels", ("labels",)))


def opened(rows: list[dict[str, Any]] = ROWS, **options: Any) -> tuple[Any, ExampleDataset]:
    return dataset_of(recipe_for("multilabel", **options), rows)


@pytest.mark.parametrize(
    ("name", "cells", "wanted"),
    [
        ("a.csv", ['"x|y, z|x"', "y", " z | w "], [["x", "y, z"], ["y"], ["z", "w"]]),
        ("a.csv", ['"b, a"', "c", '"c,b"'], [["b", "a"], ["c"], ["c", "b"]]),
        ("a.csv", ['"[""x"", ""y;z""]"', "[]", "[1]"], [["x", "y;z"], [], ["1"]]),
        ("a.jsonl", ['["x", "y"]', "[]", '"x; y"'], [["x", "y"], [], ["x", "y"]]),
    ],
)
def test_cells_are_sets_of_labels(name: str, cells: list[str], wanted: list[list[str]], tmp_path: Path) -> None:
    if name.endswith("csv"):
        content = "text,labels\n" + "".join(f"t{i},{cell}\n" for i, cell in enumerate(cells)) + "none,\n"
    else:
        rows = [f'{{"text": "t{i}", "labels": {cell}}}\n' for i, cell in enumerate(cells)]
        content = "".join(rows) + '{"text": "none", "labels": null}\n'
    records = read(write(tmp_path / name, content), LABELS)
    found = {row["text"]: row["labels"] for row in everything(records)}
    assert found == {f"t{i}": labels for i, labels in enumerate(wanted)}
    (note,) = (note for note in records.notes if "1 of 4 rows" in note)
    assert "has no labels and was left out" in note
    assert note.endswith("; write [] in the cell of a row without labels")
    assert not any("more than one" in note for note in records.notes)


def test_a_separator_of_ones_own_and_a_broken_list(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,labels\nt,a / b\nu,b\nv,[a\n")
    records = read(source, LABELS, label_separator="/")
    assert sorted(row["labels"] for row in everything(records)) == [["a", "b"], ["b"]]
    assert [(row.line, row.reason) for row in records.bad] == [(4, "labels is '[a', not a complete list")]
    assert records.digest != read(source, LABELS).digest


def test_a_separator_that_no_cell_contains_is_told(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,labels\nt,a b\nu,b\nv,[]\nw,b a\n")
    told = "more than one of the labels; if cells hold several, set data.label_separator to the text between them"
    assert any(note.endswith(told) for note in read(source, LABELS, label_separator="/").notes)
    records = read(source, LABELS, label_separator=override(recipe_for("multilabel"), SPACE).data.label_separator)
    assert sorted(row["labels"] for row in everything(records)) == [[], ["a", "b"], ["b"], ["b", "a"]]
    assert not any("more than one" in note for note in records.notes)


def test_the_loss_is_binary_cross_entropy_in_float64_and_predict_agrees() -> None:
    task, dataset = opened()
    model, labels = model_of(dataset, 0.3), dataset.vocabulary.labels
    assert labels == ("cat", "dog", "the")
    nats, pairs = 0.0, []
    for row, answer in zip(ROWS, task.predict(model, dataset.vocabulary, dataset.recipe, ROWS), strict=True):
        chances = answer["probabilities"]
        nats -= sum(math.log(chances[c] if c in row["labels"] else 1 - chances[c]) for c in labels)
        assert answer["labels"] == [c for c in chances if chances[c] >= 0.5]
        assert answer["answer"] == (", ".join(answer["labels"]) or "(none)")
        assert list(chances.values()) == sorted(chances.values(), reverse=True)
        pairs.append((row["labels"], answer["labels"]))
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    assert evaluation.figures["loss"] == pytest.approx(nats / len(ROWS), rel=1e-4)
    true, found = (np.array([[c in pair[side] for c in labels] for pair in pairs]) for side in (0, 1))
    assert evaluation.figures["subset_accuracy"] == pytest.approx(100 * accuracy_score(true, found))
    assert evaluation.figures["micro_f1"] == pytest.approx(100 * f1_score(true, found, average="micro"))
    assert evaluation.figures["micro_f1_of_ngrams"] > 60
    assert evaluation.sections[0]["rows"][0][1] == max(true.sum(0))


def test_a_threshold_decides_and_ranks_stay() -> None:
    task, dataset = opened()
    model = model_of(dataset, 0.3)
    strict = type(task)(task.spec.changed(threshold=0.9))
    for answer in strict.predict(model, dataset.vocabulary, dataset.recipe, ROWS):
        assert answer["labels"] == [c for c, chance in answer["probabilities"].items() if chance >= 0.9]


sets = st.sets(st.integers(0, 4)).map(sorted)


@given(pairs=st.lists(st.tuples(sets, sets), min_size=1, max_size=20))
def test_figures_are_those_of_scikit_learn(pairs: list[tuple[list[int], list[int]]]) -> None:
    true, found = (np.array([[c in pair[side] for c in range(5)] for pair in pairs]) for side in (0, 1))
    scores = label_set_scores(pairs)
    assert scores["micro_f1"] == pytest.approx(100 * f1_score(true, found, average="micro", zero_division=0))
    assert scores["subset_accuracy"] == pytest.approx(100 * accuracy_score(true, found))
    occurring = (true | found).any(0)
    if occurring.any():
        by_label = f1_score(true[:, occurring], found[:, occurring], average=None, zero_division=0)
        assert scores["macro_f1"] == pytest.approx(100 * np.mean(by_label))


def test_labels_of_held_out_rows_alone_count_as_errors() -> None:
    held = [{"text": "a bird", "labels": ["bird"]}]
    _, dataset = dataset_of(recipe_for("multilabel"), ROWS, held)
    assert dataset.vocabulary.labels == ("bird", "cat", "dog", "the")
    assert next(dataset.rows("validation")).targets.tolist() == [[1, 0, 0, 0]]
    with pytest.raises(UserError, match="have one label in all \\('a'\\), but at least two are needed"):
        opened([{"text": "x", "labels": ["a"]}] * 3)


def test_linear_models_of_labels_are_those_of_scikit_learn() -> None:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(0)
    x = generator.standard_normal((80, 6))
    present = (x[:, :3] + generator.standard_normal((80, 3)) > 0).astype(np.float32)
    present[:, 2] = 1
    found = by_scales(label_set_solver(), csr_matrix(x), present, csr_matrix(x), present)
    wanted = LogisticRegression(C=1 / 0.06, max_iter=300).fit(x, present[:, 0])
    assert np.allclose(found.weights[:, 0], wanted.coef_[0], atol=1e-2)
    assert (found(x)[:, 2] > 4).all()


def test_a_run_learns_several_labels(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "{row["text"]}", "labels": {row["labels"]!r}}}\n' for row in rows_of("multilabel", 150))
    source = write(tmp_path / "a.jsonl", rows.replace("'", '"'))
    settings = {"steps": 80, "batch_size": 16, "validation": {"every": 40}, "optimizer": "adamw(lr=0.01)"}
    data = {"tokenizer": "word_list(60, min_frequency=1)"}
    recipe = recipe_for("multilabel", source, data, settings, context_length=24, blocks=DROPOUT)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    assert run.evaluation is not None
    assert run.evaluation["splits"]["validation"]["figures"]["micro_f1"] > 80
    (answer,) = qkv.predict(run, "the cat and dog")
    assert set(answer["labels"]) == {"the", "cat", "dog"}
    (why,) = qkv.explain(run, "the cat and red mat")
    assert why["explained"] in ("the", "cat")
    assert min(why["words"], key=lambda word: word["change"])["word"] == why["explained"]
