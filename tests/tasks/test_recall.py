"""Recall at a distance: what is drawn, accuracy and gradient by distance, and what models can and cannot reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tasks.running import opened, recipe_of

from qkv.data.batching.rows import random
from qkv.lens.capture.edits import replace
from qkv.runs.evaluation import evaluate
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import HELD_OUT
from qkv.tasks.synthetic.recall import ROWS, RecallTask
from qkv.tasks.task import Totals
from qkv.training.loop import train

HEAD = {"head": "classification(pooling=last)"}
NOWHERE = {"frontend": {"kind": "text", "positions": "none"}}
ATTENTION = {**HEAD, "blocks": [{"branches": ["attention(2)"]}]}
CONVOLUTION = {
    **HEAD,
    **NOWHERE,
    "blocks": [{"branches": ["causal_convolution(3)"]}] * 2,
}  # sees 4 places before its own
RNN = {**HEAD, **NOWHERE, "blocks": [{"branches": ["rnn"]}]}
TASK = {"kind": "recall", "distances": [0, 2, 5], "symbols": 4, "fillers": 3}


def test_the_symbol_is_shown_first_and_asked_for_last() -> None:
    task, dataset, _ = opened(recipe_of(TASK, ATTENTION))
    distances = set()
    for step in range(20):
        batch = dataset.batch(step)
        distances.add(batch.input.values.shape[1] - 2)
        for ids, target in zip(batch.input.values.tolist(), batch.targets.tolist(), strict=True):
            first, *between, last = dataset.vocabulary.tokenizer.decode(ids).split()
            assert (first, last) == (dataset.vocabulary.labels[target], "?")
            assert set(between) <= {"f0", "f1", "f2"}
        assert batch.num_targets == 3
    assert distances == {0, 2, 5}
    assert dataset.recipe.model.head.num_classes == 4  # type: ignore[attr-defined]
    assert task.evaluates


def test_the_loss_and_the_accuracy_are_those_of_the_last_vector() -> None:
    task, dataset, model = opened(recipe_of(TASK, ATTENTION))
    batch = dataset.batch(1)
    hidden, _ = model.features(batch.input.values)
    logits = hidden[:, -1] @ model.head.output.weight.T + model.head.output.bias  # type: ignore[operator, union-attr]
    nats = -logits.log_softmax(-1)[torch.arange(3), batch.targets].sum()
    torch.testing.assert_close(task.summed_loss(model, batch).double(), nats, rtol=1e-5, atol=0)
    seen = Totals()
    with torch.no_grad():
        seen.add(task.observe(model, batch))
    assert task.figures(seen, dataset.scale())["accuracy"] == (logits.argmax(-1) == batch.targets).double().mean()


@pytest.mark.parametrize("spec", [ATTENTION, CONVOLUTION, RNN], ids=["attention", "convolution", "rnn"])
def test_the_gradient_is_that_of_finite_differences(spec: dict[str, Any]) -> None:
    task, dataset, model = opened(recipe_of(TASK, spec))
    assert isinstance(task, RecallTask)
    distance, step = 2, 1e-4
    _, norm = task.at_distance(model, dataset.vocabulary, distance)
    drawn = _rows(task, dataset, distance)
    embedded, _ = model.embed(drawn.input)

    def logit(x: torch.Tensor) -> torch.Tensor:
        answer, _ = model(drawn.input, tap=replace("frontend.output", x))
        return answer.gather(1, drawn.targets[:, None])[:, 0]

    slopes = []
    with torch.no_grad():
        for feature in range(embedded.shape[2]):
            moved = [embedded.clone() for _ in range(2)]
            for x, sign in zip(moved, (1, -1), strict=True):
                x[:, 0, feature] += sign * step
            slopes.append((logit(moved[0]) - logit(moved[1])) / (2 * step))
    assert norm == pytest.approx(torch.stack(slopes).norm(dim=0).mean().item(), rel=1e-4)


def _rows(task: RecallTask, dataset: Any, distance: int) -> Any:
    return task.rows(random(distance, HELD_OUT), task.ids(dataset.vocabulary), ROWS, distance)


def test_nothing_comes_through_beyond_a_receptive_field() -> None:
    # Two convolutions of three places see four places back: the symbol three tokens before the question, and not four.
    task, dataset, model = opened(recipe_of({**TASK, "distances": [3, 4]}, CONVOLUTION))
    assert isinstance(task, RecallTask)
    (_, inside), (_, outside) = (task.at_distance(model, dataset.vocabulary, distance) for distance in (3, 4))
    assert inside > 1e-3
    assert outside == 0


def test_attention_recalls_and_the_evaluation_draws_both_curves(tmp_path: Any) -> None:
    recipe = recipe_of(TASK, {**ATTENTION, "width": 32})
    plain = recipe.to_dict()
    plain["training"] |= {"steps": 150, "batch_size": 16, "optimizer": {"kind": "adamw", "lr": 0.01}}
    evaluation = evaluate(train(Recipe.parse(plain), tmp_path / "run", on_event=lambda _: None))
    accuracy, gradient = evaluation.sections
    assert accuracy["x"] == gradient["x"] == [0, 2, 5]
    assert accuracy["lines"][0]["y"] == [evaluation.figures[f"accuracy_at_{d}"] for d in (0, 2, 5)]
    assert gradient["lines"][0]["y"] == [evaluation.figures[f"gradient_norm_at_{d}"] for d in (0, 2, 5)]
    assert accuracy["lines"][1]["y"] == [0.25] * 3
    assert min(accuracy["lines"][0]["y"]) > 0.9


def test_what_is_not_a_row_of_the_task_is_a_sentence() -> None:
    task, dataset, model = opened(recipe_of(TASK, ATTENTION))
    (found,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "s3 f1 f0 ?"}])
    assert found["answer"] in dataset.vocabulary.labels
    assert 0.25 <= found["probability"] <= 1
    with pytest.raises(UserError, match=r"'x' given, but the model reads symbols s0 to s3, fillers f0 to f2 and '\?'"):
        task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "s1 x ?"}])
    with pytest.raises(SpecError, match=r"model\.context_length: 32 positions are fewer than the 42 of a row"):
        opened(recipe_of({**TASK, "distances": [40]}, ATTENTION))
    with pytest.raises(SpecError, match=r"task\.distances: -1 given, but a distance is at least 0"):
        recipe_of({**TASK, "distances": [1, -1]}, ATTENTION)
