"""Features of several inputs that are read together, by input, and linear models over those of one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from qkv.spec.models.wide import AllInputs
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.baselines.feature_baselines import moments, once
from qkv.tasks.baselines.linear import Fitted, plain_labels, plain_values
from qkv.tasks.dataset import Example, ExampleDataset

CELLS = "cells"
"""Name of all columns of numbers and categories together."""
MOST_ROWS, _FEWEST, _NUMBERS = 10_000, 1_000, 8_000_000
"""Bounds of the rows that a linear model is fitted to, and of the dense feature values, rows times features."""


def inputs_of(recipe: Recipe) -> AllInputs | None:
    """Return the wide path of several inputs; None if the recipe has another or none."""
    return recipe.wide if recipe.wide is not None and recipe.wide.joins else None  # type: ignore[return-value]


def dense_columns(recipe: Recipe) -> dict[str, np.ndarray]:
    """Return the columns of the dense features of each input; numbers and categories are one, ``CELLS``."""
    part, groups = inputs_of(recipe), dict[str, list[np.ndarray]]()
    for name, range_ in ({} if part is None else part.ranges).items():
        group = CELLS if recipe.data.processors[name].of_cells else name
        groups.setdefault(group, []).append(np.arange(range_.start, range_.stop))
    return {name: np.concatenate(columns) for name, columns in groups.items()}


class DenseRows(NamedTuple):
    """Dense features of training rows: indices of the rows, standardised x (rows, D), mean and deviation (D)."""

    indices: np.ndarray
    x: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    def of(self, examples: Sequence[Example]) -> np.ndarray:
        """Return the standardised features of other rows."""
        return (dense(examples, len(self.mean)) - self.mean) / self.deviation


def dense(examples: Sequence[Example], size: int) -> np.ndarray:
    """Return the dense features (rows, ``size``) of examples."""
    return np.array([example.fields.features for example in examples], np.float64).reshape(len(examples), size)


def dense_rows(examples: Sequence[Example]) -> DenseRows:
    """Standardise the dense features of training rows, evenly spaced if there are many."""
    size = len(examples[0].fields.features)
    most = min(len(examples), MOST_ROWS, max(_FEWEST, _NUMBERS // size))
    indices = np.unique(np.linspace(0, len(examples) - 1, most).round().astype(int))
    x = dense([examples[i] for i in indices], size)
    mean, deviation = moments(x)
    return DenseRows(indices, (x - mean) / deviation, mean, deviation)


def input_accuracies(
    dataset: ExampleDataset, split: str, labels: Sequence[str], truth: Sequence[str]
) -> dict[str, float]:
    """Compute the accuracy in % of logistic regression on the features of each input that is not text, by name."""
    names = sorted(set(labels))
    classes = np.searchsorted(names, labels) if labels else np.zeros(0, np.int64)

    def fit(x: np.ndarray, indices: np.ndarray) -> Fitted:
        return plain_labels(x, classes[indices], len(names))

    accuracies = dict[str, float]()
    for name, outputs in _outputs(dataset, split, fit, "labels").items():
        right = sum(names[i] == label for i, label in zip(outputs.argmax(1).tolist(), truth, strict=True))
        accuracies[f"accuracy_of_{name}"] = 100 * right / max(1, len(truth))
    return accuracies


def input_errors(
    dataset: ExampleDataset, split: str, values: Sequence[float], truth: Sequence[float]
) -> dict[str, float]:
    """Compute the RMSE of ridge regression on the features of each input that is not text, by name."""
    numbers, right = np.array(values, np.float64), np.array(truth, np.float64)
    answers = _outputs(dataset, split, lambda x, indices: plain_values(x, numbers[indices]), "values")
    return {f"rmse_of_{name}": float(np.sqrt(np.mean(np.square(each[:, 0] - right)))) for name, each in answers.items()}


def _outputs(
    dataset: ExampleDataset, split: str, fit: Callable[[np.ndarray, np.ndarray], Fitted], key: str
) -> dict[str, np.ndarray]:
    """Return the outputs for the rows of ``split`` of a model of each input that is not text, fitted once."""
    groups, examples = dense_columns(dataset.recipe), dataset.fitted_examples or ()
    if not groups or not examples:
        return {}
    rows = once(dataset, "dense rows", lambda: dense_rows(examples))
    unseen, outputs = rows.of(dataset.examples[split]), dict[str, np.ndarray]()
    for name, columns in groups.items():
        x = rows.x[:, columns]
        try:
            fitted = once(dataset, (key, name), partial(fit, x, rows.indices))
        except (UserError, ValueError):  # scikit-learn is missing, or the indices rows have one label
            return {}
        outputs[name] = fitted(unseen[:, columns])
    return outputs
