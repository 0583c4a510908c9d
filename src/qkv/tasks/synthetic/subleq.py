"""SUBLEQ: the state of a computer after one instruction, learned from random states.

ids        0 3 2 1 0      4 cells, then the program counter: a = 0, b = 3, c = 2
targets    0 3 2 1 3      memory[3] - memory[0] = 1 is above 0: the counter goes on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.batching.rows import random
from qkv.data.synthetic.subleq import following_rows, subleq_batch
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Subleq
from qkv.system.errors import UserError
from qkv.tasks.dataset import HELD_OUT, Dataset
from qkv.tasks.example_task import text_in
from qkv.tasks.synthetic.generated import (
    Draw,
    GeneratedTask,
    ids_of,
    in_words,
    known_ids,
    observed_answers,
    row_figures,
    tokenizer_of,
)
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

ROWS = 512
"""Number of rows from which several instructions are carried out."""


@implements(Subleq)
class SubleqTask(GeneratedTask):
    """One instruction of SUBLEQ: -Σ_i log p(token i of the next state); several, by reading the model's own rows.

    ``qkv.theory.subleq`` has weights set by hand for the same rows.
    """

    loss_unit = "nats a token"
    evaluates = True
    asks = ("text",)
    spec: Subleq

    def longest(self, recipe: Recipe) -> int:
        return self.spec.size + 1

    def vocabulary(self) -> Vocabulary:
        names = tuple(map(str, range(self.spec.size)))
        tokenizer = tokenizer_of(names)
        return Vocabulary(tokenizer, tokenizer, names)

    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        ids, count = ids_of(vocabulary.tokenizer, vocabulary.labels), recipe.training.batch_size

        def draw(rng: np.random.Generator) -> Batch:
            rows, following = subleq_batch(rng, count, self.spec.bits)
            return Batch.of(torch.from_numpy(ids[rows]), torch.from_numpy(following))

        return draw

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(model(batch.input, tap=tap)[0], batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return observed_answers(model, batch)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return row_figures(seen)

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        figures, counts = self.figures(seen, dataset.scale(split)), sorted({1, *self.spec.instructions})
        equal = self.after(model, dataset.vocabulary, counts)
        figures |= {f"exact_match_after_{count}": equal[count] for count in counts if count > 1}
        section = {
            "kind": "curves",
            "title": "Right states by number of instructions",
            "x": counts,
            "lines": [{"name": "whole rows", "y": [equal[count] for count in counts]}],
            "x_label": "instructions",
            "y_label": "share",
            "y_zero": True,
        }
        return Evaluation(figures, [section])

    def after(self, model: Transformer, vocabulary: Vocabulary, counts: Sequence[int]) -> dict[int, float]:
        """Return the share of random rows whose state is right after each number of instructions, each row read from
        the model's last.
        """
        ids = torch.from_numpy(ids_of(vocabulary.tokenizer, vocabulary.labels))
        rows, _ = subleq_batch(random(0, HELD_OUT), ROWS, self.spec.bits)
        read, equal = torch.from_numpy(rows), dict[int, float]()
        for count in range(1, max(counts) + 1):
            rows, read = following_rows(rows), self._next(model, ids[read])
            equal[count] = float((read.numpy() == rows).all(1).mean())
        return equal

    def _next(self, model: Transformer, ids: Tensor) -> Tensor:
        """Return the numbers (B, S + 1) of the next row."""
        with torch.inference_mode(), evaluating(model):
            outputs = model(ids.to(model.device))[0]
            return model.head.decode(outputs, torch.ones_like(ids, dtype=torch.bool)).cpu()

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        return [{"answer": self._answer(model, vocabulary, text_in(row, "text"))} for row in rows]

    def _answer(self, model: Transformer, vocabulary: Vocabulary, text: str) -> str:
        words = f"{self.spec.size} cells and the counter, numbers from 0 to {self.spec.size - 1}"
        ids = known_ids(vocabulary.tokenizer, text, words)
        if len(ids) != self.spec.size + 1:
            raise UserError(f"{len(ids)} numbers given, but the model reads {words}")
        (numbers,) = self._next(model, torch.tensor([ids])).tolist()
        return " ".join(vocabulary.labels[number] for number in numbers)

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        rows, following = subleq_batch(random(0, HELD_OUT), 3, self.spec.bits)
        lines = [" ".join(map(str, row)) for row in rows.tolist()]
        answers = self.predict(model, dataset.vocabulary, recipe, [{"text": line} for line in lines])
        return in_words(lines, [answer["answer"] for answer in answers], following)
