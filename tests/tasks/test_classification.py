"""Labels of texts: what is read, the loss, the figures, and the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of

from qkv.runs.evaluation import measure
from qkv.spec.errors import SpecError
from qkv.spec.heads import ClassificationHead
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset

ROWS = rows_of("classification", 20)


def opened(
    rows: list[dict[str, Any]] = ROWS, task: str = "classification", **options: Any
) -> tuple[Any, ExampleDataset]:
    return dataset_of(recipe_for(task, **options), rows)


def labelled(*labels: str) -> list[dict[str, Any]]:
    return [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]


def test_a_row_is_cls_and_its_text_padded_on_the_right() -> None:
    task, dataset = opened(context_length=64)
    batch = task.collator(dataset.recipe, dataset.vocabulary)(
        [dataset.examples["train"][i].fields for i in (3, 1, 4, 0)]
    )
    tokenizer = dataset.vocabulary.tokenizer
    wanted = [[tokenizer.special("cls"), *tokenizer.encode(ROWS[i]["text"])] for i in (3, 1, 4, 0)]
    assert batch.input.lengths is not None
    assert batch.input.lengths.tolist() == [len(ids) for ids in wanted]
    assert [ids[:n] for ids, n in zip(batch.input.values.tolist(), batch.input.lengths.tolist(), strict=True)] == wanted
    assert all(
        not any(ids[n:]) for ids, n in zip(batch.input.values.tolist(), batch.input.lengths.tolist(), strict=True)
    )
    assert [dataset.vocabulary.labels[i] for i in batch.targets.tolist()] == [ROWS[i]["label"] for i in (3, 1, 4, 0)]


def test_rows_of_one_length_have_no_lengths() -> None:
    _, dataset = opened(labelled("a", "b"))
    assert next(dataset.rows("validation")).input.lengths is None


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max", "attention"])
def test_the_loss_is_cross_entropy_with_smoothed_targets_in_float64(smoothing: float, pooling: str) -> None:
    task, dataset = opened(
        task=f"classification(label_smoothing={smoothing})", head=f"classification(pooling={pooling})"
    )
    model, batch = model_of(dataset, 0.3), next(dataset.rows("validation", 1))
    assert batch.input.lengths is not None
    wanted = plain = 0.0
    for ids, target, length in zip(
        batch.input.values, batch.targets.tolist(), batch.input.lengths.tolist(), strict=True
    ):
        nats = -model(ids[None, :length])[0][0].double().log_softmax(-1)
        wanted += float((1 - smoothing) * nats[target] + smoothing * nats.mean())
        plain += float(nats[target])
    assert float(task.summed_loss(model, batch)) == pytest.approx(wanted, rel=1e-4)
    assert float(task.observe(model, batch).loss) == pytest.approx(plain, rel=1e-4)


def test_a_text_that_is_none_is_refused() -> None:
    task, dataset = opened(labelled("a", "b"))
    with pytest.raises(UserError, match="text: 5 is not a text"):
        task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, [{"text": 5}])


def test_an_evaluation_is_that_of_what_predict_answers() -> None:
    task, dataset = opened()
    model, labels = model_of(dataset), dataset.vocabulary.labels
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    answers = task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)
    true, found = [row["label"] for row in ROWS], [answer["answer"] for answer in answers]
    assert evaluation.figures["accuracy"] == pytest.approx(100 * accuracy_score(true, found))
    assert evaluation.figures["macro_f1"] == pytest.approx(100 * f1_score(true, found, average="macro"))
    assert evaluation.sections[0]["counts"] == confusion_matrix(true, found, labels=labels).tolist()
    wrong = [
        (a["probability"], row["text"], a["answer"], row["label"])
        for row, a in zip(ROWS, answers, strict=True)
        if a["answer"] != row["label"]
    ]
    assert wrong
    certain = sorted(wrong, key=lambda item: -item[0])[:12]
    assert evaluation.sections[1]["rows"] == [[text, answer, truth, f"{p:.3f}"] for p, text, answer, truth in certain]
    for answer in answers:
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert (
            answer["probability"] == max(answer["probabilities"].values()) == answer["probabilities"][answer["answer"]]
        )


def test_labels_that_are_numbers_stand_in_their_order() -> None:
    _, dataset = opened(labelled("10", "9", "good", "-1.5", "bad"))
    assert dataset.vocabulary.labels == ("-1.5", "9", "10", "bad", "good")
    head = dataset.recipe.model.head
    assert isinstance(head, ClassificationHead)
    assert head.num_classes == 5


def test_more_classes_than_labels_are_kept_and_fewer_refused() -> None:
    _, dataset = opened(head="classification(num_classes=7)")
    assert model_of(dataset)(next(dataset.rows("validation")).input.values)[0].shape[-1] == 7
    with pytest.raises(SpecError, match=r"model\.head\.num_classes: 2 classes are fewer than the 3 labels of the data"):
        opened(labelled("a", "b", "c"), head="classification(num_classes=2)")


def test_labels_that_cannot_be_learned_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"every example of 'table' has the label 'a', so there are no classes to distinguish"
    ):
        opened(labelled("a", "a"))
    with pytest.raises(UserError, match=r"the label 'c' occurs only in held-out data"):
        dataset_of(recipe_for("classification"), labelled("a", "b"), labelled("c"))


def test_a_long_text_is_cut_and_said_so() -> None:
    rows = [{"text": "a" * 9, "label": "a"}, {"text": "b" * 7, "label": "b"}]
    task, dataset = opened(rows, context_length=8)
    assert dataset.notes == (
        "2 of 4 examples were truncated: their text is longer than the 7 tokens that fit (the longest has 9)",
    )
    assert {len(example.fields.value.ids) for example in dataset.examples["train"]} == {8}
    answers = task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, rows)
    assert answers[0]["note"] == "the input has 9 tokens and the model reads 7; the rest was not read"
    assert "note" not in answers[1]


def test_answers_do_not_depend_on_what_else_is_asked() -> None:
    task, dataset = opened()
    model = model_of(dataset, 0.3)
    together = task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)
    alone = [task.predict(model, dataset.vocabulary, dataset.recipe, [row])[0] for row in ROWS]
    np.testing.assert_allclose([a["probability"] for a in together], [a["probability"] for a in alone], rtol=1e-4)


def test_a_sample_shows_answers_beside_the_truth() -> None:
    task, dataset = opened()
    text = task.sample(model_of(dataset), dataset, dataset.recipe)
    assert len(text.splitlines()) == 5
    for line, row in zip(text.splitlines(), ROWS, strict=False):
        assert line.endswith(f"truth: {row['label']})  {row['text']}")
