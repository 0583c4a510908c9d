"""Sorting: tagged and written, exact match against writing token by token, other lengths, and data that is drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tasks.running import CAUSAL, PREFIX, SEES_ALL, opened, recipe_of

from qkv.data.batching.batch import IGNORED
from qkv.runs.evaluation import evaluate
from qkv.runs.storage.load import load
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError
from qkv.tasks.synthetic.sorting import SortingTask
from qkv.tasks.task import Totals
from qkv.training.loop import train

HEAD = {"head": "tokens"}
MODELS = {"tagged": {**SEES_ALL, **HEAD}, "written": {**CAUSAL, **HEAD}, "prefix": {**PREFIX, **HEAD}}
TASK = "sorting(length=5, high=7)"


def numbers(dataset: Any, ids: list[int]) -> list[int]:
    return [int(word) for word in dataset.vocabulary.tokenizer.decode(ids).split()]


@pytest.mark.parametrize("name", MODELS)
def test_rows_hold_numbers_and_the_same_in_order(name: str) -> None:
    _, dataset, _ = opened(recipe_of(TASK, MODELS[name]))
    assert dataset.vocabulary.labels == tuple("0123456")
    assert dataset.recipe.model.head.num_classes == 7  # type: ignore[attr-defined]
    batch = dataset.batch(3)
    for ids, targets in zip(batch.input.values.tolist(), batch.targets.tolist(), strict=True):
        read = numbers(dataset, ids)
        if name == "tagged":
            assert targets == sorted(read)
        else:
            assert (len(read), targets[:4]) == (9, [IGNORED] * 4)
            assert targets[4:] == sorted(read[:5])
            assert read[5:] == targets[4:-1]


def test_batches_repeat_by_step_and_splits_differ() -> None:
    _, dataset, _ = opened(recipe_of(TASK, MODELS["tagged"]))
    assert dataset.batch(5).input.values.equal(dataset.batch(5).input.values)
    splits = {split: torch.cat([batch.input.values for batch in dataset.rows(split)]) for split in dataset.splits}
    assert splits["train"][:3].equal(dataset.batch(0).input.values)
    for one, other in (("train", "validation"), ("validation", "test")):
        assert not splits[one].equal(splits[other])
    assert [batch.input.values.tolist() for batch in dataset.rows("validation", 2)] == [
        batch.input.values.tolist() for batch in list(dataset.rows("validation"))[:2]
    ]
    other = opened(recipe_of("sorting(length=5, high=8)", MODELS["tagged"]))[1]
    assert dataset.digest() != other.digest()
    with pytest.raises(UserError, match="there is no split 'validate'"):
        next(dataset.rows("validate"))


@pytest.mark.parametrize("name", MODELS)
def test_exact_match_is_that_of_the_answers(name: str) -> None:
    # What is measured under teacher forcing is counted again from whole answers.
    task, dataset, model = opened(recipe_of("sorting(length=2, high=3)", MODELS[name]))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(20):  # until it is sometimes right
        optimizer.zero_grad()
        task.summed_loss(model, dataset.batch(step)).backward()
        optimizer.step()
    seen, right, count = Totals(), 0, 0
    with torch.no_grad():
        for batch in dataset.rows("validation"):
            seen.add(task.observe(model, batch))
            for ids in batch.input.values.tolist():
                read = numbers(dataset, ids)[:2]
                (found,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": " ".join(map(str, read))}])
                right, count = right + (found["answer"] == " ".join(map(str, sorted(read)))), count + 1
    figures = task.figures(seen, dataset.scale())
    assert 0 < right < count
    assert figures["exact_match"] == right / count
    assert figures["exact_match"] <= figures["token_accuracy"]


def test_the_loss_is_that_of_each_place() -> None:
    task, dataset, model = opened(recipe_of(TASK, MODELS["tagged"]))
    batch = dataset.batch(0)
    logits = model(batch.input.values)[0].log_softmax(-1)
    nats = -sum(
        logits[i, k, n]
        for i, row in enumerate(batch.input.values.tolist())
        for k, n in enumerate(sorted(numbers(dataset, row)))
    )
    torch.testing.assert_close(task.summed_loss(model, batch).double(), torch.as_tensor(nats), rtol=1e-5, atol=0)


def test_it_is_learned_and_examined_at_other_lengths(tmp_path: Any) -> None:
    recipe = recipe_of("sorting(length=3, high=4)", {**MODELS["tagged"], "width": 32})
    plain = recipe.to_dict()
    plain["training"] |= {"steps": 150, "batch_size": 32, "optimizer": {"kind": "adamw", "lr": 0.01}}
    train(type(recipe).parse(plain), tmp_path / "run", on_event=lambda _: None)
    evaluation = evaluate(load(tmp_path / "run"))
    assert evaluation.figures["exact_match"] > 0.5
    (curve,) = evaluation.sections
    assert curve["x"] == [3, 6, 12]
    assert [line["y"][1] for line in curve["lines"]] == [
        evaluation.figures["exact_match_at_6"],
        evaluation.figures["token_accuracy_at_6"],
    ]
    assert evaluation.figures["exact_match_at_12"] < evaluation.figures["exact_match"]


def test_learned_positions_end_and_the_evaluation_says_so() -> None:
    model = {**MODELS["tagged"], "frontend": {"kind": "text", "positions": "learned"}, "context_length": 12}
    task, dataset, module = opened(recipe_of(TASK, model))
    evaluation = task.evaluate(module, dataset, "validation", Totals(1.0, 1, [(1, 1)]), dataset.recipe)
    assert evaluation.sections[0]["x"] == [5, 10]
    assert evaluation.notes == ["rows of 20 numbers are not evaluated: the model reads at most 12 positions"]


@pytest.mark.parametrize(("name", "needed"), [("tagged", 40), ("written", 79)])
def test_a_context_that_is_too_short_is_refused(name: str, needed: int) -> None:
    with pytest.raises(SpecError, match=rf"model\.context_length: 32 positions are fewer than the {needed} of a row"):
        opened(recipe_of("sorting(length=40)", MODELS[name]))


def test_data_is_refused_and_strange_numbers_are_named(tmp_path: Any) -> None:
    with pytest.raises(SpecError, match="data: the task 'sorting' generates its own data"):
        recipe_of(TASK, MODELS["tagged"], tmp_path)
    task, dataset, model = opened(recipe_of(TASK, MODELS["tagged"]))
    assert isinstance(task, SortingTask)
    with pytest.raises(UserError, match="'9 x' given, but the model sorts numbers from 0 to 6"):
        task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "9 1 x"}])
