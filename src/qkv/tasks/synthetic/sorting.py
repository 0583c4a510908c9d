"""Sorting of numbers.

Tagging, if all positions attend to each other:    ids 3 1 2                targets 1 2 3
Generation, if the model decodes:                  ids 3 1 2 1 2            targets - - 1 2 3,  prefix 3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.rows import random
from qkv.data.synthetic.sorting import sorting_batch
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Sorting
from qkv.system.errors import UserError
from qkv.tasks.dataset import HELD_OUT, Dataset
from qkv.tasks.example_task import text_in
from qkv.tasks.synthetic.generated import (
    Draw,
    GeneratedTask,
    ids_of,
    in_words,
    observed_answers,
    row_figures,
    tokenizer_of,
)
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

ROWS = 512
"""Number of evaluated rows per length."""
_AT_ONCE = 64


@implements(Sorting)
class SortingTask(GeneratedTask):
    """Sorting of numbers: -Σ_k log p(k-th smallest).

    One forward pass with teacher forcing has the same exact match as greedy decoding: both read the same tokens up to
    the first mistake.
    """

    loss_unit = "nats a number"
    evaluates = True
    asks = ("text",)

    def longest(self, recipe: Recipe) -> int:
        return _positions(self.spec.length, recipe.model.decodes)

    def vocabulary(self) -> Vocabulary:
        names = tuple(map(str, range(self.spec.high)))
        tokenizer = tokenizer_of(names)
        return Vocabulary(tokenizer, tokenizer, names)

    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        ids, rows = ids_of(vocabulary.tokenizer, vocabulary.labels), recipe.training.batch_size
        return lambda rng: self.rows(rng, ids, rows, self.spec.length, recipe.model.decodes)

    def rows(self, rng: np.random.Generator, ids: np.ndarray, count: int, length: int, writes: bool) -> Batch:
        """Generate ``count`` rows of ``length`` numbers.

        ``ids[n]``: token id of number n; ``writes``: True for a decoding model.
        """
        numbers, ranked = sorting_batch(rng, count, length, self.spec.high)
        if not writes:
            return Batch.of(torch.from_numpy(ids[numbers]), torch.from_numpy(ranked))
        read = np.concatenate((ids[numbers], ids[ranked[:, :-1]]), axis=1)
        targets = np.concatenate((np.full((count, length - 1), IGNORED), ranked), axis=1)
        return Batch.of(Signal(torch.from_numpy(read), prefix=torch.full((count,), length)), torch.from_numpy(targets))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(model(batch.input, tap=tap)[0], batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return observed_answers(model, batch)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return row_figures(seen)

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        spec, limit, notes = self.spec, model.limit, []
        lengths = sorted({spec.length, *(spec.length * times for times in spec.longer)})
        results = []
        for length in lengths:
            if limit is not None and _positions(length, recipe.model.decodes) > limit:
                notes.append(f"rows of {length} numbers are not evaluated: the model reads at most {limit} positions")
                continue
            results.append((length, self.at_length(model, dataset, length)))
        figures = self.figures(seen, dataset.scale(split))
        for length, figure in results[1:]:
            figures |= {f"{name}_at_{length}": figure[name] for name in ("exact_match", "token_accuracy")}
        names = {"exact_match": "whole rows", "token_accuracy": "numbers"}
        lines = [{"name": words, "y": [figure[name] for _, figure in results]} for name, words in names.items()]
        section = {
            "kind": "curves",
            "title": "Right answers by length",
            "x": [length for length, _ in results],
            "lines": lines,
        }
        return Evaluation(
            figures, [section | {"x_label": "numbers in a row", "y_label": "accuracy", "y_zero": True}], notes
        )

    def at_length(self, model: Transformer, dataset: Dataset, length: int) -> dict[str, float]:
        """Compute metrics on newly generated rows of ``length`` numbers, which may be longer than in training."""
        ids, seen = ids_of(dataset.vocabulary.tokenizer, dataset.vocabulary.labels), Totals()
        with torch.no_grad(), evaluating(model):
            for number in range(ROWS // _AT_ONCE):
                batch = self.rows(random(length, HELD_OUT + number), ids, _AT_ONCE, length, model.spec.decodes)
                seen.add(self.observe(model, batch.to(model.device)))
        return self.figures(seen, dataset.scale())

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        return [{"answer": " ".join(self._sorted(model, vocabulary, text_in(row, "text")))} for row in rows]

    def _sorted(self, model: Transformer, vocabulary: Vocabulary, text: str) -> list[str]:
        tokenizer, labels = vocabulary.tokenizer, vocabulary.labels
        strange = [word for word in text.split() if word not in set(labels)]
        if strange or not text.split():
            raise UserError(
                f"{' '.join(strange) or text!r} given, but the model sorts numbers from 0 to {self.spec.high - 1}, "
                "as in '3 1 2'"
            )
        read, answer = tokenizer.encode(text), []
        length = len(read)
        with torch.inference_mode(), evaluating(model):
            if not model.spec.decodes:
                return [labels[i] for i in _tags(model, read, length)]
            for _ in range(length):
                answer.append(labels[_tags(model, read, length)[-1]])
                read = [*read, *tokenizer.encode(answer[-1])]
        return answer

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        numbers, ranked = sorting_batch(random(0, HELD_OUT), 3, self.spec.length, self.spec.high)
        lines = [" ".join(map(str, row)) for row in numbers.tolist()]
        answers = self.predict(model, dataset.vocabulary, recipe, [{"text": line} for line in lines])
        return in_words(lines, [answer["answer"] for answer in answers], ranked)


def _positions(length: int, writes: bool) -> int:
    return 2 * length - 1 if writes else length


def _tags(model: Transformer, read: list[int], length: int) -> list[int]:
    ids = torch.tensor([read], device=model.device)
    prefix = torch.tensor([length], device=ids.device) if model.spec.reads_prefix else None
    outputs = model(Signal(ids, prefix=prefix))[0]
    return model.head.decode(outputs, torch.ones_like(ids, dtype=torch.bool))[0].tolist()
