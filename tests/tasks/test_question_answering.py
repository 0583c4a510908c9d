"""Questions on contexts: what is read, where it points, the loss, and what several windows say together."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.tasks.tables import Oracle, dataset_of, model_of, recipe_for, rows_of

from qkv.runs.evaluation import measure
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.metrics.answer_metrics import answer_scores
from qkv.tasks.task import Totals

ROWS = rows_of("question_answering", 12)
NO_ANSWER = {"context": "the cat sat", "question": "where is red", "answers": []}
TASK = "question_answering(stride=6, max_question_tokens=4, max_answer_tokens=3)"
WORDS = {"tokenizer": "word_list(100, min_frequency=1)"}


def opened(rows: list[dict[str, Any]] = ROWS, task: str = TASK, length: int = 14) -> tuple[Any, ExampleDataset]:
    return dataset_of(recipe_for(task, data=WORDS, context_length=length), rows)


def row(context: str, answer: str, question: str = "where is it") -> dict[str, Any]:
    return {"context": context, "question": question, "answers": [{"text": answer, "start": context.index(answer)}]}


def test_a_window_is_cls_question_sep_context_sep_and_points_at_the_answer() -> None:
    _, dataset = opened([row("a red cat sat on the mat", "cat sat")])
    tokenizer = dataset.vocabulary.tokenizer
    (example,) = dataset.examples["train"]
    batch = next(dataset.rows("validation"))
    cls, sep = tokenizer.special("cls"), tokenizer.special("sep")
    question, context = tokenizer.encode("where is it"), tokenizer.encode("a red cat sat on the mat")
    assert batch.input.values[0].tolist() == [cls, *question, sep, *context, sep]
    assert batch.targets.tolist() == [[7, 8]]
    assert batch.input.values[0, 7:9].tolist() == tokenizer.encode("cat sat")
    assert (example.size, example.targets, batch.num_targets) == (13, 2, 2)


def test_windows_that_do_not_hold_the_whole_answer_point_at_cls() -> None:
    context = " ".join(
        ["a", "red", "cat", "sat", "on", "the", "mat", "and", "then", "the", "dog", "ran", "under", "a", "house"]
    )
    _, dataset = opened([row(context, "the mat")])
    batch = next(dataset.rows("validation"))
    words = context.split()
    assert batch.extras["offset"].tolist() == [12, 0, 6]  # sorted by length
    for ids, (first, last), begin, end, offset in zip(
        batch.input.values.tolist(),
        batch.targets.tolist(),
        batch.extras["begin"].tolist(),
        batch.extras["end"].tolist(),
        batch.extras["offset"].tolist(),
        strict=True,
    ):
        read = words[offset : offset + end - begin]
        assert ids[begin:end] == dataset.vocabulary.tokenizer.encode(" ".join(read))
        whole = {"the", "mat"} <= set(read) and offset <= 5
        assert (first, last) == ((begin + 5 - offset, begin + 6 - offset) if whole else (0, 0))


def test_the_loss_is_that_of_two_softmaxes_over_the_real_positions() -> None:
    task, dataset = opened()
    model = model_of(dataset)
    batch = next(dataset.rows("validation", 1))
    wanted = 0.0
    assert batch.input.lengths is not None
    for i, length in enumerate(batch.input.lengths.tolist()):
        logits = model(batch.input.values[i : i + 1, :length])[0][0].double()
        wanted -= sum(float(logits[:, k].log_softmax(0)[batch.targets[i, k]]) for k in (0, 1))
    assert float(task.summed_loss(model, batch)) == pytest.approx(wanted, rel=1e-4)
    loss, count = task.summed_loss(model, batch), batch.num_targets
    assert (float(loss), count) == (pytest.approx(wanted, rel=1e-4), 2 * len(batch.input.values))


def test_an_evaluation_says_what_predict_answers() -> None:
    task, dataset = opened()
    model = model_of(dataset)
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    answers = task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)
    wanted = answer_scores([a["answer"] for a in answers], [[t["text"] for t in r["answers"]] for r in ROWS])
    assert {name: evaluation.figures[name] for name in wanted} == pytest.approx(wanted)
    assert [shown[1] for shown in evaluation.sections[0]["rows"]] == [a["answer"] for a in answers]
    for r, answer in zip(ROWS, answers, strict=True):
        assert r["context"][answer["start"] : answer["end"]] == answer["answer"]
        assert 0 < answer["probability"] <= 1
    assert (
        evaluation.figures["f1_of_first_sentence"]
        == answer_scores([r["context"] for r in ROWS], [[r["answers"][0]["text"]] for r in ROWS])["f1"]
    )
    assert "f1_of_no_answer" not in evaluation.figures


def said(task: Any, dataset: ExampleDataset, model: Oracle, logits: list[torch.Tensor]) -> Totals:
    """What is observed where the windows, one a batch, have these logits."""
    seen = Totals()
    for window, says in zip(dataset.examples["validation"], logits, strict=True):
        model.says = says
        seen.add(task.observe(model, task.collator(dataset.recipe, dataset.vocabulary)([window.fields])))
    return seen


@pytest.mark.parametrize(("cls", "answer"), [(1.0, "dog"), (2.4, "dog"), (2.6, "no answer")])
def test_the_best_window_answers_and_none_must_win_in_every_window(cls: float, answer: str) -> None:
    rows = [row("a red cat sat on the mat and then the dog ran", "dog"), NO_ANSWER]
    task, dataset = opened(rows, length=14)
    assert dataset.recipe.task.no_answer
    of_first = [window for window in dataset.examples["validation"] if window.fields.question == 0]
    logits = [torch.zeros(1, window.size, 2) for window in dataset.examples["validation"]]
    logits[0][0, 0] = 9.0  # this window is sure that the answer is not in it
    place = of_first[1].fields.begin + 10 - of_first[1].fields.offset
    logits[1][0, place] = 2.5
    logits[1][0, 0] = cls
    logits[2][0, 0] = 1.0
    evaluation = task.evaluate(Oracle(), dataset, "validation", said(task, dataset, Oracle(), logits), dataset.recipe)
    assert [shown[1] for shown in evaluation.sections[0]["rows"]] == [answer, "no answer"]
    assert evaluation.figures["exact_match"] == (100 if answer == "dog" else 50)
    assert evaluation.figures["f1_of_no_answer"] == 50


def test_where_every_question_has_an_answer_none_is_never_said() -> None:
    task, dataset = opened([row("a red cat sat", "red")])
    assert dataset.recipe.task.no_answer is False
    logits = [torch.zeros(1, dataset.examples["train"][0].size, 2)]
    logits[0][0, 0] = 50.0
    logits[0][0, 6] = 1.0
    evaluation = task.evaluate(Oracle(), dataset, "validation", said(task, dataset, Oracle(), logits), dataset.recipe)
    assert evaluation.figures["exact_match"] == 100
    total = sum(math.exp((i == 1) + (j == 1)) for i in range(4) for j in range(i, min(4, i + 3)))
    assert float(evaluation.sections[0]["rows"][0][3]) == pytest.approx(math.exp(2) / total, abs=1e-3)


def test_a_long_question_is_cut_and_said_so() -> None:
    rows = [row("a red cat", "red", "where is the red blue cat")]
    task, dataset = opened(rows)
    assert dataset.notes == (
        "2 of 2 examples were truncated: their question is longer than the 4 tokens that fit (the longest has 6)",
    )
    (answer,) = task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, rows)
    assert answer["note"] == "the question has 6 tokens and the model reads 4; the rest was not read"


def test_a_context_without_a_token_has_no_answer() -> None:
    task, dataset = opened()
    (answer,) = task.predict(
        model_of(dataset), dataset.vocabulary, dataset.recipe, [{"question": "where", "context": " "}]
    )
    assert answer == {"answer": "no answer", "probability": 1.0}


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"task\.max_question_tokens: a question of 4 tokens and 3 special tokens leave no room for a context "
        r"in 7",
    ):
        opened(length=7)
    task, dataset = opened()
    with pytest.raises(UserError, match="context: 5 is not a text"):
        task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, [{"question": "where", "context": 5}])
