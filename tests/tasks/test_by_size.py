"""Associative recall and copying: figures by size, learning, predictions, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.running import opened
from torch import Tensor

import qkv
from qkv.data.batching.batch import IGNORED
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.synthetic.by_size import ROWS


def recipe(task: str, **training: Any) -> Recipe:
    return Recipe.parse(
        {
            "task": task,
            "model": {
                "width": 32,
                "num_layers": 2,
                "context_length": 32,
                "blocks": [{"branches": ["attention(2, relative=rope)", "feed_forward(64)"]}],
                "head": "tokens",
            },
            "training": {"steps": 2, "batch_size": 16, "optimizer": {"kind": "adamw", "lr": 3e-3}, **training},
        }
    )


class Knowing(torch.nn.Module):
    """Model whose logits name the right answers of rows of more than ``size`` positions, and word 0 of others."""

    def __init__(self, model: Any, size: int, ids: list[int]):
        super().__init__()
        self.model, self.size, self.ids = model, size, ids
        self.spec, self.head, self.limit, self.device = model.spec, model.head, model.limit, model.device

    def forward(self, signal: Any) -> tuple[Tensor, None]:
        rows, length = signal.values.shape
        logits = torch.zeros(rows, length, 5)  # of the words s0 … s3 and the mark
        if length > self.size:
            half = length // 2
            text = torch.tensor([[self.ids.index(i) for i in row] for row in signal.values[:, :half].tolist()])
            logits[:, half:].scatter_(2, text[..., None], 9.0)
        return logits, None


def test_figures_by_size_are_those_of_the_right_answers() -> None:
    task, dataset, model = opened(recipe("copying(sizes=[1, 3], longer=[6], symbols=4)"))
    ids = dataset.vocabulary.tokenizer.encode("s0 s1 s2 s3 =")
    seen, knowing = totals(task, model, dataset), Knowing(model, 4, ids)
    found = task.evaluate(knowing, dataset, "validation", seen, dataset.recipe).figures
    assert found["accuracy_at_3"] == found["exact_match_at_3"] == found["accuracy_at_6"] == 1.0
    chance = 4 * (0.25 * 0.75 / ROWS) ** 0.5
    assert found["accuracy_at_1"] == pytest.approx(0.25, abs=chance)


def totals(task: Any, model: Any, dataset: Any) -> Any:
    from qkv.tasks.task import Totals

    seen = Totals()
    seen.add(task.observe(model, dataset.batch(0)))
    return seen


def test_sizes_beyond_learned_positions_are_named() -> None:
    given = recipe("copying(sizes=[2], longer=[9], symbols=4)").to_dict()
    given["model"] |= {"context_length": 8, "frontend": {"kind": "text", "positions": "learned"}}
    task, dataset, model = opened(Recipe.parse(given))
    evaluation = task.evaluate(model, dataset, "validation", totals(task, model, dataset), dataset.recipe)
    assert evaluation.notes == ["rows of size 9 are not evaluated: the model reads up to 8 positions"]
    assert "accuracy_at_9" not in evaluation.figures


def test_attention_learns_to_recall_and_answers_a_text(tmp_path: Path) -> None:
    wanted = recipe("associative_recall(sizes=[2], keys=4, values=4)", steps=300, batch_size=32)
    run = qkv.train(wanted, out=tmp_path)
    assert run.evaluation["splits"]["validation"]["figures"]["accuracy"] > 0.6
    answer = qkv.predict(run, ["k3 v1 k0 v2 k3"])[0]
    assert answer["answer"].startswith("v")
    with pytest.raises(UserError, match=r"'x9' given, but the model reads k0 to v3, as in 'k3 v1 k0 v5 k3'"):
        qkv.predict(run, ["k3 x9"])


def test_targets_of_the_keys_alone_count() -> None:
    _, dataset, _ = opened(recipe("associative_recall(sizes=[3], keys=8, values=5)"))
    batch = dataset.batch(0)
    assert batch.num_targets == 3 * 16 == int((batch.targets != IGNORED).sum())


@pytest.mark.parametrize(
    ("task", "model", "sentence"),
    [
        ("copying(sizes=[0])", {}, "0 given, but a size is at least 1"),
        ("associative_recall(sizes=[9], keys=8)", {}, "8 different keys are fewer than 9 pairs"),
        ("copying", {"head": "classification"}, "needs a head of the kind 'tokens'"),
        ("copying", {"blocks": [{"branches": ["attention(2, mask=full)"]}]}, "reads the answers; use causal branches"),
        ("copying(sizes=[40])", {}, "32 positions are fewer than the 80 of a row"),
    ],
)
def test_impossible_settings_are_refused(task: str, model: dict[str, Any], sentence: str) -> None:
    given = recipe("copying(sizes=[1])").to_dict()
    changed = {**given, "task": task, "model": {**given["model"], **model}}
    with pytest.raises(SpecError, match=sentence):
        opened(Recipe.parse(changed))
