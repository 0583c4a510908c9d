"""Baselines that a model should exceed: linear models over TF-IDF of n-grams, fitted to the same data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from qkv.system.errors import UserError
from qkv.tasks.baselines.linear import Fitted, plain_labels, plain_values
from qkv.tasks.metrics.text_metrics import metric_library

MOST_CHARACTERS = 50_000_000
"""Maximum number of characters of the training texts of a linear model."""
MOST_WEIGHTS = 10_000_000
"""Maximum product of classes and features: the solver keeps twenty vectors of that size."""
NGRAMS_PER_WORD = 10
"""Approximate number of distinct n-grams per distinct word, measured on film reviews."""


def predicted_labels(texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str]) -> list[str]:
    """Predict the labels of ``unseen`` by logistic regression (L2 penalty 1) over ``ngrams``, fitted to ``texts``.

    Raises ``UserError`` if scikit-learn is not installed.
    """
    features, names, fitted = _labels(tuple(texts), tuple(labels))
    return [names[i] for i in fitted(features.transform(unseen)).argmax(1)]


def predicted_values(texts: Sequence[str], values: Sequence[float], unseen: Sequence[str]) -> np.ndarray:
    """Predict the values of ``unseen`` by ridge regression (penalty 1) over ``ngrams``, fitted to ``texts``.

    Raises ``UserError`` if scikit-learn is not installed.
    """
    features, fitted = _values(tuple(texts), tuple(map(float, values)))
    return fitted(features.transform(unseen))[:, 0]


@lru_cache(maxsize=1)  # one fit predicts all splits
def _labels(texts: tuple[str, ...], labels: tuple[str, ...]) -> tuple[Any, list[str], Fitted]:
    """Fit logistic regression: return (fitted ``ngrams``, class names, linear model)."""
    features, names = ngrams(), sorted(set(labels))
    ids = np.array([names.index(label) for label in labels])
    return features, names, plain_labels(features.fit_transform(texts), ids, len(names))


@lru_cache(maxsize=1)
def _values(texts: tuple[str, ...], values: tuple[float, ...]) -> tuple[Any, Fitted]:
    """Fit ridge regression: return (fitted ``ngrams``, linear model)."""
    features = ngrams()
    return features, plain_values(features.fit_transform(texts), np.array(values))


def ngrams() -> Any:
    """Build a scikit-learn vectoriser: TF-IDF of word 1- and 2-grams, and of character 3- to 5-grams within words."""
    vectorizer = metric_library("sklearn.feature_extraction.text").TfidfVectorizer
    words = vectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+")
    characters = vectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    return metric_library("sklearn.pipeline").FeatureUnion([("words", words), ("characters", characters)])


def too_large(texts: Sequence[str], classes: int = 1) -> str:
    """Return a note for the user if the data is too large for a linear model over n-grams, else ""."""
    size = sum(map(len, texts))
    if size > MOST_CHARACTERS:
        return (
            f"the n-gram baseline is left out: {size:,} characters of training text are more than {MOST_CHARACTERS:,}"
        )
    features = NGRAMS_PER_WORD * len({word for text in texts for word in text.lower().split()})
    if classes * features > MOST_WEIGHTS:
        return (
            f"the n-gram baseline is left out: {classes:,} classes times about {features:,} n-grams are more than "
            f"{MOST_WEIGHTS:,} weights"
        )
    return ""


def ngram_accuracy(
    texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str], truth: Sequence[str]
) -> float | None:
    """Compute the accuracy of ``predicted_labels`` on ``unseen`` texts with labels ``truth``, in per cent.

    Return None without scikit-learn, for fewer than two labels, or if the data is ``too_large``.
    """
    if too_large(texts, len(set(labels))) or len(set(labels)) < 2:
        return None
    try:
        predictions = predicted_labels(texts, labels, unseen)
    except (UserError, ValueError):  # no text has an n-gram
        return None
    return 100 * sum(a == b for a, b in zip(predictions, truth, strict=True)) / max(1, len(truth))


def ngram_rmse(
    texts: Sequence[str], values: Sequence[float], unseen: Sequence[str], truth: Sequence[float]
) -> float | None:
    """Compute the root-mean-square error of ``predicted_values`` on ``unseen`` texts with values ``truth``.

    Return None without scikit-learn, or if the data is ``too_large``.
    """
    if too_large(texts) or not texts:
        return None
    try:
        predictions = predicted_values(texts, values, unseen)
    except (UserError, ValueError):
        return None
    return float(np.sqrt(np.mean((predictions - np.array(truth, np.float64)) ** 2)))
