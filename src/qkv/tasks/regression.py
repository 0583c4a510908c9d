"""A number for a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batch import Batch
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.generation.sample import evaluating
from qkv.layers.context import Tap
from qkv.models.transformer import Transformer
from qkv.spec import tasks as spec
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.example_task import Collate, Cut, ExampleTask, column, lengths_or_none, padded, text_in, trained
from qkv.tasks.material import Example, ExampleMaterial, Material
from qkv.tasks.task import Exam, Observed, Scale, Totals, register

_AT_ONCE = 64
_SHOWN = 12


@dataclass(frozen=True)
class NumberBatch(Batch):
    """``targets`` (B,) are float32 and none is ignored."""

    @property
    def num_targets(self) -> int:
        return len(self.targets)


@register(spec.Regression)
class RegressionTask(ExampleTask):
    """Σ (f(text) - z)², z = (y - mean) / deviation. The text is preceded by the mark ``cls``, whose vector the pooling ``first`` takes.

    Mean and deviation are those of the training values; the completed recipe holds them. The loss is in squared deviations, so that 1 is
    what the mean alone reaches; the figures are in the units of the data.
    """

    loss_unit = "squared deviations an example"
    examines = True
    asks = ("text",)
    roles = (
        Role("text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message")),
        Role("value", "number", ("value", "score", "target", "number", "rating", "label", "price", "stars", "y")),
    )

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        values, task = np.array(column(records, "value"), np.float64), recipe.task
        assert isinstance(task, spec.Regression)
        mean = float(values.mean()) if task.mean is None else task.mean
        deviation = float(values.std()) if task.deviation is None else task.deviation
        if not deviation > 0:
            raise UserError(f"data.source: every example of {records.name!r} has the value {values[0]:g}, and there is nothing to learn")
        return recipe.changed(task=task.changed(mean=mean, deviation=deviation))

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        tokenizer = trained(recipe.data.tokenizer, column(records, "text"), ("cls",))
        return Vocabulary(tokenizer, tokenizer)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Cut) -> Example:
        ids = _read(row["text"], vocabulary, cut)
        return Example(len(ids), 1, (ids, row["value"]))

    def collator(self, recipe: Recipe) -> Collate:
        mean, deviation = _units(recipe.task)

        def collate(rows: Sequence[tuple[np.ndarray, float]]) -> NumberBatch:
            ids, lengths = padded([ids for ids, _ in rows])
            values = (np.array([value for _, value in rows], np.float64) - mean) / deviation
            return NumberBatch(ids, torch.from_numpy(values.astype(np.float32)), lengths_or_none(ids, lengths))

        return collate

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return ((_numbers(model, batch, tap) - batch.targets) ** 2).sum()

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        mean, deviation = _units(self.spec)
        found = _numbers(model, batch)
        pairs = torch.stack((batch.targets, found), 1).double() * deviation + mean
        return Observed(((found - batch.targets) ** 2).sum(), batch.num_targets, pairs.tolist())

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count), **closeness(seen.outcomes, _units(self.spec)[0])}

    def examine(self, model: Any, material: Material, split: str, seen: Totals, recipe: Recipe) -> Exam:
        assert isinstance(material, ExampleMaterial)
        rows = material.records[split][:2000]
        answers = self.predict(model, material.vocabulary, recipe, rows)
        found = sorted(zip(rows, answers, strict=True), key=lambda pair: -abs(pair[1]["value"] - pair[0]["value"]))
        shown = [[row["text"], answer["answer"], f"{row['value']:.4g}"] for row, answer in found[:_SHOWN]]
        table = {"kind": "examples", "title": "Where it is most wrong", "columns": ["text", "answer", "truth"], "rows": shown}
        return Exam(self.figures(seen, material.scale(split)), [table])

    def sample(self, model: Transformer, material: Material, recipe: Recipe) -> str | None:
        assert isinstance(material, ExampleMaterial)
        rows = material.records["validation"][:5]
        answers = self.predict(model, material.vocabulary, recipe, rows)
        return "\n".join(
            f"{answer['answer']} (truth: {row['value']:.4g})  {row['text']}" for row, answer in zip(rows, answers, strict=True)
        )

    def predict(self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        cut, collate, (mean, deviation) = Cut(self.limits(recipe)), self.collator(recipe), _units(recipe.task)
        found: list[float] = []
        for begin in range(0, len(rows), _AT_ONCE):
            texts = [_read(text_in(row, "text"), vocabulary, cut) for row in rows[begin : begin + _AT_ONCE]]
            batch = collate([(ids, mean) for ids in texts]).to(model.frontend.table.device)
            with torch.inference_mode(), evaluating(model):
                found += (_numbers(model, batch).double() * deviation + mean).tolist()
        return [self._answer(row, value, vocabulary, cut) for row, value in zip(rows, found, strict=True)]

    def _answer(self, row: dict[str, Any], value: float, vocabulary: Vocabulary, cut: Cut) -> dict[str, Any]:
        answer: dict[str, Any] = {"answer": f"{value:.4g}", "value": value}
        length, most = len(vocabulary.tokenizer.encode(row["text"])), cut.limits["text"]
        if length > most:
            answer["note"] = f"the input has {length} tokens and the model reads {most}; the rest was not read"
        return answer


def closeness(pairs: Sequence[Sequence[float]], mean: float) -> dict[str, float]:
    """Of (true value, prediction) pairs: RMSE = √(mean of squared errors), MAE = mean absolute error, Pearson's r, and beside them the
    RMSE of ``mean`` as the only answer. r is NaN where predictions or values do not vary."""
    if not len(pairs):
        return dict.fromkeys(("rmse", "mae", "pearson_r", "rmse_of_mean"), math.nan)
    true, found = np.array(pairs, np.float64).T
    errors = found - true
    a, b = true - true.mean(), found - found.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return {
        "rmse": math.sqrt(float((errors**2).mean())),
        "mae": float(np.abs(errors).mean()),
        "pearson_r": float(a @ b) / spread if spread > 0 else math.nan,
        "rmse_of_mean": math.sqrt(float(((true - mean) ** 2).mean())),
    }


def _units(task: Any) -> tuple[float, float]:
    """Mean and deviation, which the completed recipe holds."""
    if task.mean is None or task.deviation is None:
        raise UserError("task.mean and task.deviation are not known: give them, or open the data, whose training part decides them")
    return task.mean, task.deviation


def _read(text: str, vocabulary: Vocabulary, cut: Cut) -> np.ndarray:
    mark = vocabulary.tokenizer.special("cls")
    assert mark is not None
    return np.concatenate(([mark], cut(vocabulary.tokenizer.encode(text), "text")))


def _numbers(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """(B,), in deviations from the mean."""
    return model(batch.ids, lengths=batch.lengths, segments=batch.segments, tap=tap)[0][:, 0].float()
