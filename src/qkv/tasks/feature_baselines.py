"""Baselines for inputs other than text: linear models over simple features, such as the pixels of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.batch import INPUT
from qkv.data.processors.processor import build_processor
from qkv.spec.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.text_metrics import metric_library

_MOST_ROWS = 10_000
"""Maximum number of rows that a baseline is fitted to, evenly spaced over the training split."""
_ITERATIONS = 300


class FeatureTable(NamedTuple):
    """Simple features of inputs: their ``name``, such as "pixels", and those of training rows and of another split.

    kept: indices of the training rows in x.   x (kept rows, F), unseen (rows, F): scaled to mean 0 and deviation 1 of
    the training rows.
    """

    name: str
    kept: np.ndarray
    x: np.ndarray
    unseen: np.ndarray


def features_of(dataset: ExampleDataset, split: str) -> FeatureTable | None:
    """Simple features of the run's training rows and of ``split``; None if its processor has none."""
    processor = build_processor(dataset.vocabulary.processors[INPUT])
    known = list(dataset.fitted_examples or ())
    kept = np.unique(np.linspace(0, len(known) - 1, min(len(known), _MOST_ROWS)).round().astype(int))
    sides = [known[i] for i in kept], list(dataset.examples[split])
    found = [[processor.features(example.parts[0]) for example in side] for side in sides]
    if not known or any(features is None for side in found for features in side):
        return None
    x, unseen = (np.array(side, np.float64) for side in found)
    mean, deviation = x.mean(0), x.std(0)
    deviation[deviation == 0] = 1
    return FeatureTable(processor.simple, kept, (x - mean) / deviation, (unseen - mean) / deviation)


def feature_accuracy(
    dataset: ExampleDataset, split: str, labels: Sequence[str], truth: Sequence[str]
) -> dict[str, float]:
    """Accuracy of logistic regression on simple features, in per cent; empty without features or scikit-learn.

    labels: those of the training rows; truth: those of ``split``.
    """
    found = features_of(dataset, split)
    if found is None:
        return {}
    known = [labels[i] for i in found.kept]
    answers = _predicted("LogisticRegression", {"C": 1.0, "max_iter": _ITERATIONS}, found, known)
    if answers is None or len(set(known)) < 2:
        return {}
    right = sum(str(a) == b for a, b in zip(answers, truth, strict=True))
    return {f"accuracy_of_{found.name}": 100 * right / max(1, len(truth))}


def feature_rmse(
    dataset: ExampleDataset, split: str, values: Sequence[float], truth: Sequence[float]
) -> dict[str, float]:
    """Root-mean-square error of ridge regression on simple features; empty without features or scikit-learn."""
    found = features_of(dataset, split)
    if found is None:
        return {}
    answers = _predicted("Ridge", {"alpha": 1.0}, found, [values[i] for i in found.kept])
    if answers is None:
        return {}
    return {f"rmse_of_{found.name}": float(np.sqrt(np.mean(np.square(answers - np.array(truth, np.float64)))))}


def _predicted(kind: str, options: dict[str, Any], found: FeatureTable, targets: Sequence[Any]) -> Any:
    """Predictions of a linear model of scikit-learn for ``found.unseen``; None if it is missing or cannot be fitted."""
    try:
        model = getattr(metric_library("sklearn.linear_model"), kind)(**options)
        with np.errstate(all="ignore"):
            return model.fit(found.x, np.array(targets)).predict(found.unseen)
    except (UserError, ValueError):
        return None
