"""Base class for generated tasks whose rows have a size, such as a number of pairs, with metrics per size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.batching.rows import random
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import BySize
from qkv.tasks.dataset import HELD_OUT, Dataset
from qkv.tasks.example_task import text_in
from qkv.tasks.synthetic.generated import Draw, GeneratedTask, ids_of, known_ids, observed_answers, tokenizer_of
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

ROWS = 256
"""Number of evaluated rows per size."""
_AT_ONCE = 64


class BySizeTask(GeneratedTask):
    """Base class of tasks on generated rows of several sizes: -Σ log p(answer) at the positions with an answer.

    Accuracy counts positions, exact match counts whole rows; both are also reported for each size.
    """

    loss_unit = "nats an answer"
    evaluates = True
    asks = ("text",)
    spec: BySize
    size_name: ClassVar[str]
    """Axis label for sizes in charts."""

    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """Return the words of the vocabulary; word n stands for the generated number n."""

    @abstractmethod
    def numbers(self, rng: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Generate ``count`` rows of one size; return (word numbers read, answers or ``IGNORED``), both (B, N)."""

    @abstractmethod
    def example(self) -> str:
        """Return an example input of ``predict``, for messages."""

    def longest(self, recipe: Recipe) -> int:
        return self.spec.row_length(max(self.spec.sizes))

    def vocabulary(self) -> Vocabulary:
        tokenizer = tokenizer_of(self.words())
        return Vocabulary(tokenizer, tokenizer, self.words())

    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        ids, rows = self._ids(vocabulary), recipe.training.batch_size
        return lambda rng: self.rows(rng, ids, rows, int(rng.choice(self.spec.sizes)))

    def _ids(self, vocabulary: Vocabulary) -> np.ndarray:
        return ids_of(vocabulary.tokenizer, vocabulary.labels)

    def rows(self, rng: np.random.Generator, ids: np.ndarray, count: int, size: int) -> Batch:
        """Generate ``count`` rows of one size. ids[n]: token id of word n."""
        read, answers = self.numbers(rng, count, size)
        return Batch.of(torch.from_numpy(ids[read]), torch.from_numpy(answers))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(model(batch.input, tap=tap)[0], batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return observed_answers(model, batch)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        rows = max(1, len(seen.outcomes))
        return {
            "loss": seen.loss / max(1, seen.count),
            "accuracy": sum(right for right, _ in seen.outcomes) / max(1, seen.count),
            "exact_match": sum(right == total for right, total in seen.outcomes) / rows,
        }

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        limit, sizes = model.limit, sorted({*self.spec.sizes, *self.spec.longer})
        fitting = [size for size in sizes if limit is None or self.spec.row_length(size) <= limit]
        results = [self.at_size(model, dataset, size) for size in fitting]
        figures = self.figures(seen, dataset.scale(split))
        for size, each in zip(fitting, results, strict=True):
            figures |= {f"{name}_at_{size}": each[name] for name in ("accuracy", "exact_match")}
        names = {"answers": "accuracy", "whole rows": "exact_match"}
        section = {
            "kind": "curves",
            "title": f"Right answers by {self.size_name}",
            "x": fitting,
            "x_log": True,
            "lines": [{"name": name, "y": [each[key] for each in results]} for name, key in names.items()],
            "x_label": self.size_name,
            "y_label": "share",
            "y_zero": True,
        }
        notes = [f"rows of size {size} are not evaluated: the model reads up to {limit} positions" for size in sizes]
        return Evaluation(
            figures, [section], [note for note, size in zip(notes, sizes, strict=True) if size not in fitting]
        )

    def at_size(self, model: Transformer, dataset: Dataset, size: int) -> dict[str, float]:
        """Compute metrics on newly generated rows of one size, which may be larger than in training."""
        ids, seen = self._ids(dataset.vocabulary), Totals()
        with torch.no_grad(), evaluating(model):
            for number in range(ROWS // _AT_ONCE):
                batch = self.rows(random(size, HELD_OUT + number), ids, _AT_ONCE, size)
                seen.add(self.observe(model, batch.to(model.device)))
        return self.figures(seen, dataset.scale())

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Predict the most probable next word of each text, with its probability."""
        answers, words = [], self.words()
        symbols = f"{words[0]} to {words[-1]}, as in {self.example()!r}"
        for text in [text_in(row, "text") for row in rows]:
            ids = torch.tensor([known_ids(vocabulary.tokenizer, text, symbols)], device=model.device)
            with torch.inference_mode(), evaluating(model):
                chances = model(ids)[0][0, -1].softmax(-1)
            best = int(chances.argmax())
            answers.append({"answer": vocabulary.labels[best], "probability": chances[best].item()})
        return answers
