"""SUBLEQ as a task: targets of the interpreter, figures counted from answers, several instructions, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tasks.running import CAUSAL, SEES_ALL, opened, recipe_of

from qkv.spec.errors import SpecError
from qkv.system.errors import UserError
from qkv.tasks.synthetic import subleq
from qkv.tasks.synthetic.subleq import SubleqTask
from qkv.tasks.task import Totals
from qkv.theory.subleq.interpreter import interpret, next_row
from qkv.theory.subleq.machine import SubleqMachine

TASK, MODEL = "subleq(bits=2)", {**SEES_ALL, "head": "tokens"}


def numbers(dataset: Any, ids: list[int]) -> list[int]:
    return [int(word) for word in dataset.vocabulary.tokenizer.decode(ids).split()]


class ByHand(torch.nn.Module):
    """Logits of the machine whose weights are set by hand, for the token ids of a vocabulary."""

    def __init__(self, ids: list[int], wrong: bool = False):
        super().__init__()
        self.machine, self.ids, self.wrong = SubleqMachine(bits=3).model, ids, wrong
        self.head, self.device = self.machine.head, torch.device("cpu")

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = torch.tensor([[self.ids.index(token) for token in row] for row in ids.tolist()])
        logits = self.machine(rows)[0]
        return (logits.roll(1, -1) if self.wrong else logits), None


def test_targets_are_the_rows_of_the_interpreter() -> None:
    _, dataset, model = opened(recipe_of(TASK, MODEL))
    assert dataset.vocabulary.labels == ("0", "1", "2", "3")
    assert dataset.recipe.model.head.num_classes == 4  # type: ignore[attr-defined]
    batch = dataset.batch(3)
    for ids, targets in zip(batch.input.values.tolist(), batch.targets.tolist(), strict=True):
        assert targets == next_row(numbers(dataset, ids))
    task = SubleqTask(dataset.recipe.task)
    logits = model(batch.input.values)[0].log_softmax(-1)
    nats = -sum(logits[i, k, n] for i, row in enumerate(batch.targets.tolist()) for k, n in enumerate(row))
    torch.testing.assert_close(task.summed_loss(model, batch).double(), torch.as_tensor(nats), rtol=1e-5, atol=0)


def test_the_machine_set_by_hand_is_right_after_any_number_of_instructions() -> None:
    task, dataset, _ = opened(recipe_of("subleq(bits=3)", MODEL))
    ids = dataset.vocabulary.tokenizer.encode(" ".join(map(str, range(8))))
    for wrong, share in ((False, 1.0), (True, 0.0)):
        model: Any = ByHand(ids, wrong)
        figures = task.evaluate(model, dataset, "test", Totals(), dataset.recipe).figures
        assert [figures[f"exact_match_after_{count}"] for count in (4, 16)] == [share, share]


def test_several_instructions_read_the_rows_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    task, dataset, model = opened(recipe_of(TASK, MODEL))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(60):  # until it is sometimes right
        optimizer.zero_grad()
        task.summed_loss(model, dataset.batch(step)).backward()
        optimizer.step()
    monkeypatch.setattr(subleq, "ROWS", 40)
    shares = task.after(model, dataset.vocabulary, [1, 2])
    right = [0, 0]
    for row in subleq.subleq_batch(subleq.random(0, subleq.HELD_OUT), 40, 2)[0].tolist():
        states = list(interpret(row, 2))
        states += [states[-1]] * (3 - len(states))  # the last instruction changes nothing
        for count in (1, 2):
            (answer,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": " ".join(map(str, row))}])
            row = [int(word) for word in answer["answer"].split()]
            right[count - 1] += row == states[count]
    assert shares == {1: right[0] / 40, 2: right[1] / 40}
    assert 0 < right[0] < 40


def test_what_the_task_cannot_read_is_refused() -> None:
    with pytest.raises(SpecError, match="depends on later ones; use branches that see them all"):
        opened(recipe_of(TASK, {**CAUSAL, "head": "tokens"}))
    with pytest.raises(SpecError, match="0 given, but at least 1 is carried out"):
        recipe_of("subleq(instructions=[0])", MODEL)
    with pytest.raises(SpecError, match="32 positions are fewer than the 257"):
        opened(recipe_of("subleq(bits=8)", MODEL))
    task, dataset, model = opened(recipe_of(TASK, MODEL))
    for text, message in (
        ("0 1 2", "3 numbers given, but the model reads 4 cells"),
        ("0 1 2 3 9", "'9' given, but the model"),
    ):
        with pytest.raises(UserError, match=message):
            task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": text}])
