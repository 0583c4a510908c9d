"""Regression on texts, pairs of texts and other signals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec import tasks as spec
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.system.errors import UserError
from qkv.tasks.baselines.baselines import ngram_rmse
from qkv.tasks.baselines.feature_baselines import feature_rmse
from qkv.tasks.baselines.input_features import input_errors
from qkv.tasks.baselines.linear import Solver, value_solver
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.example_task import Collate, column
from qkv.tasks.inputs import EncodedRow
from qkv.tasks.labels.pooled import SHORT, PooledTask
from qkv.tasks.task import Defaults, Evaluation, Observed, Scale, Totals, lowercase

_SHOWN = 12


@implements(spec.Regression)
class RegressionTask(PooledTask):
    """Regression: Σ (f(input) - z)² over rows, with targets z = (y - mean) / deviation.

    Mean and standard deviation are those of the training values, stored in the completed recipe. The loss is in
    squared standard deviations, so that predicting the mean gives 1; metrics are in the units of the data.
    """

    loss_unit = "squared deviations an example"
    unknown = 0.0
    metric = "rmse"
    automatic = Defaults(("text", "pair"), lengths=SHORT, target="value", tokenizer=lowercase)
    target = Role("value", "number", ("value", "score", "target", "number", "rating", "label", "price", "stars", "y"))

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        values, task = np.array(column(records, "value"), np.float64), recipe.task
        assert isinstance(task, spec.Regression)
        mean = float(values.mean()) if task.mean is None else task.mean
        deviation = float(values.std()) if task.deviation is None else task.deviation
        if not deviation > 0:
            raise UserError(
                f"data.source: every example of {records.name!r} has the value {values[0]:g}, "
                "so there is nothing to learn"
            )
        data = recipe.data.changed(decimal=recipe.data.decimal or records.decimal)
        return recipe.changed(data=data, task=task.changed(mean=mean, deviation=deviation))

    def encoded(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> float:
        return row["value"]

    def solver(self, num_outputs: int) -> Solver:
        return value_solver()

    def targets(self, dataset: ExampleDataset, split: str) -> np.ndarray:
        mean, deviation = _units(self.spec)
        return (super().targets(dataset, split) - mean) / deviation

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        (mean, deviation), read = _units(recipe.task), self.reader(recipe, vocabulary)

        def collate(rows: Sequence[EncodedRow]) -> Batch:
            values = (np.array([row.truth for row in rows], np.float64) - mean) / deviation
            return read.batch(rows, torch.from_numpy(values.astype(np.float32)), len(values))

        return collate

    def observed(self, model: Transformer, outputs: Tensor, batch: Batch) -> Observed:
        mean, deviation = _units(self.spec)
        values = at_least_single(outputs[:, 0])
        pairs = torch.stack((batch.targets.to(values), values), 1).double() * deviation + mean
        return Observed(model.head.loss(outputs, batch.targets), batch.num_targets, pairs.tolist())

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count), **closeness(seen.outcomes, _units(self.spec)[0])}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        answers = sorted(
            self.answered(model, dataset, split, recipe), key=lambda pair: -abs(pair[1]["value"] - pair[0]["value"])
        )
        read, columns = self.reader(recipe, dataset.vocabulary), [self.asks[0], "answer", "truth"]
        rows = [[read.shown(row), answer["answer"], f"{row['value']:.4g}"] for row, answer in answers[:_SHOWN]]
        table = {"kind": "examples", "title": "Largest errors", "columns": columns, "rows": rows}
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split)) | self.baselines(dataset, split)
        drawn = self.pictures("Largest errors", answers[:_SHOWN], read)
        sections = [*(drawn or [table]), *self.heated(model, dataset, split, recipe)]
        return Evaluation(figures, sections, self.size_notes(dataset))

    def baselines(self, dataset: ExampleDataset, split: str) -> dict[str, float]:
        train_rows, rows = dataset.fitted_on or (), dataset.records[split]
        values, truth = ([row["value"] for row in some] for some in (train_rows, rows))
        if self.processor is not None:
            return feature_rmse(dataset, split, values, truth)
        errors = input_errors(dataset, split, values, truth)
        texts, texts_of_split = self.texts(train_rows), self.texts(rows)
        linear = None if texts is None or texts_of_split is None else ngram_rmse(texts, values, texts_of_split, truth)
        return errors if linear is None else {**errors, "rmse_of_ngrams": linear}

    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        return f"{answer['answer']} (truth: {row['value']:.4g})"

    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        mean, deviation = _units(recipe.task)
        values = (outputs[:, 0].double() * deviation + mean).tolist()
        return [{"answer": f"{value:.4g}", "value": value} for value in values]


def closeness(pairs: Sequence[Sequence[float]], mean: float) -> dict[str, float]:
    """Compute metrics of (true value, prediction) pairs.

    They are the RMSE, the MAE (mean absolute error), Pearson's r, and the RMSE of always predicting ``mean``. r is NaN
    if predictions or values are constant.
    """
    if not len(pairs):
        return dict.fromkeys(("rmse", "mae", "pearson_r", "rmse_of_mean"), math.nan)
    true, predicted = np.array(pairs, np.float64).T
    errors = predicted - true
    a, b = true - true.mean(), predicted - predicted.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return {
        "rmse": math.sqrt(float((errors**2).mean())),
        "mae": float(np.abs(errors).mean()),
        "pearson_r": float(a @ b) / spread if spread > 0 else math.nan,
        "rmse_of_mean": math.sqrt(float(((true - mean) ** 2).mean())),
    }


def _units(task: Any) -> tuple[float, float]:
    """Return (mean, standard deviation) of the training values, from the task of the completed recipe."""
    if task.mean is None or task.deviation is None:
        raise UserError(
            "task.mean and task.deviation are not set: set them, or open the data, which computes them from its "
            "training split"
        )
    return task.mean, task.deviation
