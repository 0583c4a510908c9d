"""Recall of a symbol, as a function of the distance to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.batching.rows import random
from qkv.data.synthetic.recall import recall_batch
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Location, Recorder, Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Recall
from qkv.tasks.dataset import HELD_OUT, Dataset
from qkv.tasks.example_task import text_in
from qkv.tasks.synthetic.generated import Draw, GeneratedTask, ids_of, known_ids, tokenizer_of
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

ROWS = 256
"""Number of evaluated rows per distance."""
QUERY = "?"


@implements(Recall)
class RecallTask(GeneratedTask):
    """Recall of the symbol that starts a row, after filler tokens: -log p(symbol) at the query token that ends the row.

    Causal models predict from their last vector (``pooling: last``).
    """

    loss_unit = "nats an example"
    evaluates = True
    asks = ("text",)

    def longest(self, recipe: Recipe) -> int:
        return max(self.spec.distances) + 2

    def vocabulary(self) -> Vocabulary:
        symbols = tuple(f"s{i}" for i in range(self.spec.symbols))
        tokenizer = tokenizer_of([*symbols, *(f"f{i}" for i in range(self.spec.fillers)), QUERY])
        return Vocabulary(tokenizer, tokenizer, symbols)

    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        ids, rows = self.ids(vocabulary), recipe.training.batch_size
        return lambda rng: self.rows(rng, ids, rows, int(rng.choice(self.spec.distances)))

    def ids(self, vocabulary: Vocabulary) -> np.ndarray:
        """Return the token ids in the order of ``qkv.data.synthetic.recall``: symbols, fillers, query."""
        return ids_of(vocabulary.tokenizer, [*vocabulary.labels, *(f"f{i}" for i in range(self.spec.fillers)), QUERY])

    def rows(self, rng: np.random.Generator, ids: np.ndarray, count: int, distance: int) -> Batch:
        """Generate ``count`` rows whose symbol is ``distance`` tokens before the query; one target per row."""
        drawn, targets = recall_batch(rng, count, distance, self.spec.symbols, self.spec.fillers)
        return Batch.of(torch.from_numpy(ids[drawn]), torch.from_numpy(targets[:, -1].copy()))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(model(batch.input, tap=tap)[0], batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        logits = at_least_single(model(batch.input)[0])
        right = (logits.argmax(-1) == batch.targets).tolist()
        distance = batch.input.values.shape[1] - 2
        return Observed(model.head.loss(logits, batch.targets), len(right), [(distance, answer) for answer in right])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        right = sum(answer for _, answer in seen.outcomes)
        return {"loss": seen.loss / max(1, seen.count), "accuracy": right / max(1, len(seen.outcomes))}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        distances = sorted(set(self.spec.distances))
        curves = [self.at_distance(model, dataset.vocabulary, distance) for distance in distances]
        accuracies, norms = ([pair[i] for pair in curves] for i in (0, 1))
        chance = 1 / self.spec.symbols
        figures = self.figures(seen, dataset.scale(split))
        figures |= {f"accuracy_at_{d}": accuracy for d, accuracy in zip(distances, accuracies, strict=True)}
        figures |= {f"gradient_norm_at_{d}": norm for d, norm in zip(distances, norms, strict=True)}
        remembered = [{"name": "the model", "y": accuracies}, {"name": "chance", "y": [chance] * len(distances)}]
        both = {
            "kind": "curves",
            "x": distances,
            "x_log": distances[0] > 0,
            "x_label": "tokens between the symbol and the query",
        }
        heard = [
            {"name": "the model", "y": [norm if norm > 0 else None for norm in norms]}
        ]  # 0 cannot be drawn on a logarithmic axis
        sections = [
            both | {"title": "Right answers by distance", "y_label": "accuracy", "y_zero": True, "lines": remembered},
            both | {"title": "Gradient by distance", "y_label": GRADIENT, "y_log": True, "lines": heard},
        ]
        return Evaluation(figures, sections)

    def at_distance(self, model: Transformer, vocabulary: Vocabulary, distance: int) -> tuple[float, float]:
        """Compute (accuracy, mean ‖∂ logit of the right answer / ∂ symbol embedding‖) over new rows of this distance.

        The gradient is taken of the logit, because the gradient of the loss vanishes when the model is certain.
        """
        batch = self.rows(random(distance, HELD_OUT), self.ids(vocabulary), ROWS, distance).to(model.device)
        with evaluating(model), torch.enable_grad():
            leaf = _Leaf("frontend.output")
            logits = at_least_single(model(batch.input, tap=leaf)[0])
            logit = logits.gather(1, batch.targets[:, None]).sum()
            (gradient,) = torch.autograd.grad(logit, list(leaf.records.values()))
        right = at_least_single(logits.argmax(-1) == batch.targets).mean().item()
        return right, gradient[:, 0].norm(dim=-1).mean().item()

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        symbols, fillers = self.spec.symbols, self.spec.fillers
        description = (
            f"symbols s0 to s{symbols - 1}, fillers f0 to f{fillers - 1} and {QUERY!r}, as in 's3 f1 f0 {QUERY}'"
        )
        answers = []
        for text in [text_in(row, "text") for row in rows]:
            ids = torch.tensor([known_ids(vocabulary.tokenizer, text, description)], device=model.device)
            with torch.inference_mode(), evaluating(model):
                chances = at_least_single(model(ids)[0][0]).softmax(-1)
            best = int(chances.argmax())
            answers.append({"answer": vocabulary.labels[best], "probability": chances[best].item()})
        return answers


class _Leaf(Recorder):
    """Tap that detaches each value to a leaf of the autograd graph, whose gradient can be computed, and records it."""

    def at(self, location: Location, value: Tensor) -> Tensor:
        super().at(location, value.detach().requires_grad_())
        return self.records[location]


GRADIENT = "gradient norm of the answer's logit with respect to the symbol's embedding"
