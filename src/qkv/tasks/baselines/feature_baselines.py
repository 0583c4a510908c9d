"""Linear models over simple features of inputs other than text, such as the pixels of an image."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from qkv.data.features.ngrams import Bag
from qkv.data.processors.processor import build_processor
from qkv.spec.models.wide import Features
from qkv.system.errors import UserError
from qkv.tasks.baselines.linear import (
    Crossed,
    Fitted,
    Selection,
    by_penalty,
    label_solver,
    plain_labels,
    plain_values,
    value_solver,
)
from qkv.tasks.dataset import Dataset, Example, ExampleDataset

_MOST_ROWS, _FEWEST_ROWS = 10_000, 1000
"""Bounds of the maximum number of rows that a model is fitted to: the more features, the fewer rows, see ``_NUMBERS``.
The rows are evenly spaced over the training split.
"""
_NUMBERS = 8_000_000
"""Maximum number of dense feature values, rows times features."""


class FeatureTable(NamedTuple):
    """Features of training rows and of another split, as a linear model reads them.

    They are (features - mean) / deviation, or the features of bags, see ``_Features.of_bags``.

    name: noun such as "pixels".   kept: indices of the training rows in x.   select: how penalties are selected.
    x (kept rows, F): training features.   unseen (rows, F): features of the other split.   mean, deviation: statistics
    of the standardised features.   used (F): row in the weight table of the wide path for each column of x; None: the
    same order.   factors (F): scale from a weight of x to the weight in that table; None: 1.
    """

    name: str
    kept: np.ndarray
    x: Any
    unseen: Any
    mean: np.ndarray
    deviation: np.ndarray
    select: Selection = by_penalty
    used: np.ndarray | None = None
    factors: np.ndarray | None = None

    def placed(self, fitted: Fitted, features: int) -> np.ndarray:
        """Return the weight table (features, C) of a wide path from a fit to x; features that x leaves out get 0."""
        factors = np.ones(len(fitted.weights)) if self.factors is None else self.factors
        table = np.zeros((features, fitted.weights.shape[1]))
        table[slice(None) if self.used is None else self.used] = fitted.weights * factors[:, None]
        return table


_T = TypeVar("_T")
_MADE: WeakKeyDictionary[Dataset, dict[Hashable, Any]] = WeakKeyDictionary()
"""Cache of results per data set, by key; an entry lives as long as its data set."""


def once(dataset: Dataset, key: Hashable, make: Callable[[], _T]) -> _T:
    """Return the cached result of ``make`` for this data set and key; the first call computes it.

    The result is freed together with the data set.
    """
    results = _MADE.setdefault(dataset, {})
    if key not in results:
        results[key] = make()
    return results[key]


def features_of(dataset: ExampleDataset, split: str, also: str | None = None) -> FeatureTable | None:
    """Compute simple features of the run's training rows and of ``split``, standardised over the training rows.

    Return None if the run's processor has no simple features. ``also``: name of a split whose rows are added to the
    training rows.
    """
    split_rows = once(
        dataset, ("features", also), lambda: _training_features(dataset, also)
    )  # the same rows for all splits
    if split_rows is None:
        return None
    table, transform = split_rows
    return table._replace(unseen=transform(list(dataset.examples[split])))


_Transform = Callable[[Sequence[Example]], Any]


def _training_features(dataset: ExampleDataset, also: str | None) -> tuple[FeatureTable, _Transform] | None:
    """Return (simple features of the run's training rows, function that computes the features of other rows).

    None if there are no training rows or no simple features.
    """
    reader = _Features(dataset)
    rows = [*(dataset.fitted_examples or ()), *(dataset.examples[also] if also else ())]
    most = min(len(rows), reader.most_rows)
    indices = np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))
    some = [rows[i] for i in indices]
    if not rows or any(reader.simple(example) is None for example in some[:1]):
        return None
    return reader.of_bags(indices, some) if reader.part.counts else reader.standardised(indices, some)


class _Features:
    """Simple features of the examples of a data set.

    If the run has a wide path, its features are stored in the encoded examples. Otherwise they are computed for the
    strongest kind of wide path of the run's processor.
    """

    def __init__(self, dataset: ExampleDataset):
        wide = dataset.recipe.wide
        processor = dataset.vocabulary.processor
        assert processor is not None
        self.processor = build_processor(processor)
        self.known = wide is not None
        self.part = wide if wide is not None and wide.of_values else self.processor.strongest()
        self.name = self.part.noun or self.processor.simple
        first = self.processor.spec.num_simple or 0
        self.first, self.select = first, once(dataset, "selection", lambda: Crossed(first))

    @property
    def most_rows(self) -> int:
        """Maximum number of rows that a model is fitted to."""
        part = self.part.of_processor(self.processor.spec)
        assert isinstance(part, Features)
        dense = 1 if part.counts else part.count or 1
        return min(_MOST_ROWS, max(_FEWEST_ROWS, _NUMBERS // dense))

    def simple(self, example: Example) -> np.ndarray | None:
        """Return the dense features of an example."""
        if self.part.counts:
            return self.bag(example).counts[: self.first]
        return example.fields.features if self.known else self.processor.read_by(example.fields.value, self.part)

    def bag(self, example: Example) -> Bag:
        """Return the bag of an example: dense features first, then counted features."""
        return example.fields.bag if self.known else self.processor.bag(example.fields.value, self.part)

    def standardised(self, indices: np.ndarray, some: Sequence[Example]) -> tuple[FeatureTable, _Transform]:
        """Standardise dense features to (features - mean) / deviation; return (table, function for other rows)."""
        x = np.array([self.simple(example) for example in some], np.float64)
        mean, deviation = moments(x)

        def transform(rows: Sequence[Example]) -> np.ndarray:
            dense = np.array([self.simple(example) for example in rows], np.float64)
            return (dense.reshape(len(rows), len(mean)) - mean) / deviation

        return FeatureTable(self.name, indices, (x - mean) / deviation, x[:0], mean, deviation), transform

    def of_bags(self, indices: np.ndarray, some: Sequence[Example]) -> tuple[FeatureTable, _Transform]:
        """Scale bags; return (table, function for other rows).

        The D dense features are standardised and divided by √D. Counted features become ln(1 + count), divided by one
        common scale. Both blocks have rows with a mean squared norm of 1. Counted features that occur in a single row
        are left out.
        """
        from scipy.sparse import csr_matrix, hstack

        bags, first = [self.bag(example) for example in some], self.first
        mean, deviation = moments(np.array([bag.counts[:first] for bag in bags], np.float64))
        ids, rows = np.unique(np.concatenate([bag.ids[first:] for bag in bags]), return_counts=True)
        ids = ids[rows > 1]
        root = max(1, first) ** 0.5
        amounts = np.concatenate([bag.counts[first:][np.isin(bag.ids[first:], ids)] for bag in bags])
        scale = max(float(np.square(np.log1p(amounts)).sum() / len(bags)) ** 0.5, 1e-6)

        def weighted(bags: Sequence[Bag]) -> Any:
            dense = np.array([bag.counts[:first] for bag in bags], np.float64).reshape(len(bags), first)
            sparse = counted([Bag(bag.ids[first:], bag.counts[first:]) for bag in bags], ids)
            sparse.data = np.log1p(sparse.data) / scale
            return hstack((csr_matrix((dense - mean) / deviation / root), sparse)).tocsr()

        used = np.concatenate((np.arange(first), ids))
        factors = np.concatenate((np.full(first, 1 / root), np.full(len(ids), 1 / scale)))
        x, select = weighted(bags), self.select
        table = FeatureTable(self.name, indices, x, x[:0], mean, deviation, select, used, factors)
        return table, lambda rows: weighted([self.bag(example) for example in rows])


def counted(bags: Sequence[Bag], ids: np.ndarray) -> Any:
    """Return the counts of the features ``ids`` (sorted) in bags, as a sparse matrix (bags, ids)."""
    from scipy.sparse import csr_matrix

    columns = [np.searchsorted(ids, bag.ids) for bag in bags]
    masks = [
        ids[np.minimum(column, len(ids) - 1)] == bag.ids if len(ids) else bag.ids < 0
        for column, bag in zip(columns, bags, strict=True)
    ]
    data = np.concatenate([np.zeros(0), *(bag.counts[mask] for bag, mask in zip(bags, masks, strict=True))])
    indices = np.concatenate(
        [np.zeros(0, np.int64), *(column[mask] for column, mask in zip(columns, masks, strict=True))]
    )
    ends = np.cumsum([0, *(mask.sum() for mask in masks)])
    return csr_matrix((data, indices, ends), shape=(len(bags), len(ids)))


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute (mean, standard deviation) of each column; the deviation of a constant column is set to 1."""
    mean, deviation = x.mean(0), x.std(0)
    deviation[deviation == 0] = 1
    return mean, deviation


def feature_accuracy(
    dataset: ExampleDataset, split: str, labels: Sequence[str], truth: Sequence[str]
) -> dict[str, float]:
    """Compute the accuracy of logistic regression on simple features, in per cent.

    Return an empty dict without features or scikit-learn. labels: labels of the training rows; truth: labels of
    ``split``.
    """
    table, names = features_of(dataset, split), sorted(set(labels))
    if table is None or len(names) < 2:
        return {}
    try:
        fitted = once(dataset, tuple(labels), lambda: _of_labels(table, labels))  # one fit for all splits
        answers = fitted(table.unseen).argmax(1)
    except (UserError, ValueError):  # scikit-learn is missing, or the kept rows have one label
        return {}
    right = sum(names[i] == label for i, label in zip(answers.tolist(), truth, strict=True))
    return {f"accuracy_of_{table.name}": 100 * right / max(1, len(truth))}


def feature_rmse(
    dataset: ExampleDataset, split: str, values: Sequence[float], truth: Sequence[float]
) -> dict[str, float]:
    """Compute the RMSE of ridge regression on simple features; empty without features or scikit-learn."""
    table = features_of(dataset, split)
    if table is None:
        return {}
    try:
        answers = once(dataset, tuple(values), lambda: _of_values(table, values))(table.unseen)[:, 0]
    except (UserError, ValueError):  # scikit-learn is missing, or a value is not finite
        return {}
    return {f"rmse_of_{table.name}": float(np.sqrt(np.mean(np.square(answers - np.array(truth, np.float64)))))}


def _of_labels(table: FeatureTable, labels: Sequence[str]) -> Fitted:
    """Fit logistic regression to the training rows; class i is the i-th of the sorted labels."""
    place = {name: i for i, name in enumerate(sorted(set(labels)))}
    ids = np.array([place[labels[int(i)]] for i in table.kept])
    if isinstance(table.select, Crossed):
        return table.select(label_solver(len(place)), table.x, ids, table.x[:0], ids[:0])
    return plain_labels(table.x, ids, len(place))


def _of_values(table: FeatureTable, values: Sequence[float]) -> Fitted:
    """Fit ridge regression to the values of the training rows; its outputs have the units of the values."""
    targets = np.array([values[i] for i in table.kept], np.float64)
    if not isinstance(table.select, Crossed):
        return plain_values(table.x, targets)
    mean, deviation = targets.mean(), targets.std() or 1.0
    fitted = table.select(value_solver(), table.x, (targets - mean) / deviation, table.x[:0], targets[:0])
    return Fitted(fitted.weights * deviation, fitted.intercept * deviation + mean)
