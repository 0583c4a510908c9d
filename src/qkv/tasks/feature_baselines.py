"""Linear models over simple features of inputs other than text, such as the pixels of an image."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from qkv.data.batch import INPUT
from qkv.data.processors.processor import Processor, build_processor
from qkv.spec.errors import UserError
from qkv.tasks.dataset import Example, ExampleDataset
from qkv.tasks.inputs import FEATURES
from qkv.tasks.linear import Fitted, plain_labels, plain_values

_MOST_ROWS = 10_000
"""Maximum number of rows that a model is fitted to, evenly spaced over the training split."""


class FeatureTable(NamedTuple):
    """Features of training rows and of another split, both as (features - mean) / deviation.

    name: noun such as "pixels".   kept: indices of the training rows in x.
    x (kept rows, F), unseen (rows, F), mean (F), deviation (F).
    """

    name: str
    kept: np.ndarray
    x: np.ndarray
    unseen: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


_T = TypeVar("_T")
_MADE: WeakKeyDictionary[ExampleDataset, dict[Hashable, Any]] = WeakKeyDictionary()
"""What was computed from each data set that is still in use, by key."""


def _once(dataset: ExampleDataset, key: Hashable, make: Callable[[], _T]) -> _T:
    """Value that ``make`` returned in the first call for this data set and key; freed together with the data set."""
    found = _MADE.setdefault(dataset, {})
    if key not in found:
        found[key] = make()
    return found[key]


def features_of(dataset: ExampleDataset, split: str) -> FeatureTable | None:
    """Simple features of the run's training rows and of ``split``, standardised over the former; None if its processor
    has none.
    """
    known = _once(dataset, "features", lambda: _known(dataset))  # all splits are compared with the same rows
    if known is None:
        return None
    processor = build_processor(dataset.vocabulary.processors[INPUT])
    unseen = np.array([_simple(processor, example) for example in dataset.examples[split]], np.float64)
    return known._replace(unseen=(unseen - known.mean) / known.deviation)


def _known(dataset: ExampleDataset) -> FeatureTable | None:
    """Simple features of the run's training rows, none unseen; None without such rows or features."""
    processor = build_processor(dataset.vocabulary.processors[INPUT])
    rows = list(dataset.fitted_examples or ())
    kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).round().astype(int))
    found = [_simple(processor, rows[i]) for i in kept]
    if not rows or any(features is None for features in found):
        return None
    x = np.array(found, np.float64)
    mean, deviation = x.mean(0), x.std(0)
    deviation[deviation == 0] = 1
    return FeatureTable(processor.simple, kept, (x - mean) / deviation, x[:0], mean, deviation)


def _simple(processor: Processor, example: Example) -> np.ndarray | None:
    """Simple features of an example: those computed with it, if the run has a wide path."""
    return example.parts[FEATURES] if len(example.parts) > FEATURES else processor.features(example.parts[0])


def feature_accuracy(
    dataset: ExampleDataset, split: str, labels: Sequence[str], truth: Sequence[str]
) -> dict[str, float]:
    """Accuracy of logistic regression on simple features, in per cent; empty without features or scikit-learn.

    labels: those of the training rows; truth: those of ``split``.
    """
    found, names = features_of(dataset, split), sorted(set(labels))
    if found is None or len(names) < 2:
        return {}
    try:
        fitted = _once(dataset, tuple(labels), lambda: _of_labels(found, labels))  # one fit for all splits
        answers = fitted(found.unseen).argmax(1)
    except (UserError, ValueError):  # scikit-learn is missing, or the kept rows have one label
        return {}
    right = sum(names[i] == label for i, label in zip(answers.tolist(), truth, strict=True))
    return {f"accuracy_of_{found.name}": 100 * right / max(1, len(truth))}


def feature_rmse(
    dataset: ExampleDataset, split: str, values: Sequence[float], truth: Sequence[float]
) -> dict[str, float]:
    """Root-mean-square error of ridge regression on simple features; empty without features or scikit-learn."""
    found = features_of(dataset, split)
    if found is None:
        return {}
    try:
        answers = _once(dataset, tuple(values), lambda: _of_values(found, values))(found.unseen)[:, 0]
    except (UserError, ValueError):  # scikit-learn is missing, or a value is not finite
        return {}
    return {f"rmse_of_{found.name}": float(np.sqrt(np.mean(np.square(answers - np.array(truth, np.float64)))))}


def _of_labels(found: FeatureTable, labels: Sequence[str]) -> Fitted:
    """Logistic regression of the labels of the training rows, as indices of the sorted labels."""
    place = {name: i for i, name in enumerate(sorted(set(labels)))}
    return plain_labels(found.x, np.array([place[labels[int(i)]] for i in found.kept]), len(place))


def _of_values(found: FeatureTable, values: Sequence[float]) -> Fitted:
    """Ridge regression of the values of the training rows."""
    return plain_values(found.x, np.array([values[i] for i in found.kept], np.float64))
