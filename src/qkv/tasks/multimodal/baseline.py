"""Baselines of matching: a linear map between simple features of both inputs, and the nearest training row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv.tasks.baselines.baselines import ngrams
from qkv.tasks.dataset import Example, ExampleDataset
from qkv.tasks.metrics.retrieval_metrics import both_ways
from qkv.tasks.metrics.text_metrics import metric_library
from qkv.tasks.multimodal.pair_inputs import PairInput, PairInputs

_MOST_ROWS, _AXES = 10_000, 256
"""Maximum numbers of training rows, evenly spaced, and of principal axes of the features of an input."""
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
_FEWEST = 10


def matching_baselines(dataset: ExampleDataset, split: str, inputs: PairInputs) -> dict[str, float]:
    """Compute recall at 1 of two baselines on ``split``, in %, the mean of both ways; empty without simple features.

    Simple features are TF-IDF of n-grams of a text, and those of the processor for other inputs, such as colours and
    gradients of an image, on their first principal axes. ``linear_map``: ridge regression from the features of the
    first input to those of the second; its penalty is chosen by the error on rows left out. ``nearest_neighbour``: the
    second input of the training row whose first input is most similar.
    """
    rows, examples = dataset.fitted_on or [], dataset.fitted_examples or []
    indices = spread(len(examples))
    unseen = dataset.examples[split]
    if len(indices) < _FEWEST or not unseen:
        return {}
    features = [
        _features(entry, i, [rows[k] for k in indices], [examples[k] for k in indices], dataset.records[split], unseen)
        for i, entry in enumerate(inputs)
    ]
    pairs = [pair for pair in features if pair is not None]
    if len(pairs) < len(features):
        return {}
    (first, first_unseen), (second, second_unseen) = pairs
    linear = metric_library("sklearn.linear_model").RidgeCV(alphas=PENALTIES).fit(first, second)
    nearest = second[(_unit(first_unseen) @ _unit(first).T).argmax(1)]
    contents = np.array([example.fields.contents for example in unseen])
    guesses = {"linear_map": linear.predict(first_unseen), "nearest_neighbour": nearest}
    return {
        f"recall_1_of_{name}": both_ways("a", "b", _unit(second_unseen) @ _unit(guess).T, contents)["recall_1"]
        for name, guess in guesses.items()
    }


def spread(rows: int) -> list[int]:
    """Return the indices of all of ``rows`` rows, or of evenly spaced ones if they are more than a linear map needs."""
    return np.unique(np.linspace(0, rows - 1, min(rows, _MOST_ROWS)).round().astype(int)).tolist()


def _features(
    entry: PairInput,
    index: int,
    rows: Sequence[Mapping[str, Any]],
    examples: Sequence[Example],
    unseen_rows: Sequence[Mapping[str, Any]],
    unseen: Sequence[Example],
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (features of training rows, those of unseen rows) of one input; None if it has no simple features."""
    if entry.is_text:
        counts = ngrams()
        training = counts.fit_transform([entry.shown(row) for row in rows])
        return _projected(training, counts.transform([entry.shown(row) for row in unseen_rows]))
    training, other = (entry.features([each.fields.values[index] for each in some]) for some in (examples, unseen))
    if training is None or other is None:
        return None
    mean, deviation = training.mean(0), training.std(0) + 1e-6
    return _projected((training - mean) / deviation, (other - mean) / deviation)


def _projected(training: Any, other: Any) -> tuple[np.ndarray, np.ndarray]:
    """Project features on the first principal axes of the training rows."""
    axes = max(1, min(_AXES, min(training.shape) - 1))
    reduction = metric_library("sklearn.decomposition").TruncatedSVD(axes, random_state=0)
    return reduction.fit_transform(training), reduction.transform(other)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
