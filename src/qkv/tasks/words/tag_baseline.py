"""Baselines of tagging: the most frequent tag of each word, and logistic regression over words and neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from qkv.data.features.word_features import strings
from qkv.spec.processors import WordFeatures
from qkv.system.errors import UserError
from qkv.tasks.metrics.label_metrics import agreement
from qkv.tasks.metrics.text_metrics import metric_library
from qkv.tasks.words.entities import MostFrequent, entity_f1, marks_entities

FEATURES = WordFeatures(neighbours=2)
"""Lower-cased word, prefixes and suffixes of up to four characters, shape, and two neighbours on each side."""
MOST_FITTED = 3_000_000
"""Maximum product of tags and training words: fitting at 800,000 takes ten seconds on one core."""

Rows = Sequence[Mapping[str, Any]]
Tags = Sequence[Sequence[str]]
Tagger = Callable[[Tags], Tags]
"""Function from the words of sentences to their tags."""


class FeatureTagger:
    """Logistic regression (L2 penalty of 1) over ``FEATURES``, fitted to the ``words`` and ``tags`` of ``rows``.

    Each word is tagged independently of the other tags. Raises ``UserError`` if scikit-learn is not installed.
    """

    def __init__(self, rows: Rows):
        text, linear = metric_library("sklearn.feature_extraction.text"), metric_library("sklearn.linear_model")
        self._table = text.CountVectorizer(analyzer=list, binary=True, dtype="float32")
        features = self._table.fit_transform([feature for row in rows for feature in strings(row["words"], FEATURES)])
        self._regression = linear.LogisticRegression(max_iter=200)
        self._regression.fit(features, [tag for row in rows for tag in row["tags"]])

    def __call__(self, sentences: Tags) -> list[list[str]]:
        """Predict the tags of each sentence."""
        features = [feature for words in sentences for feature in strings(words, FEATURES)]
        tags = iter(self._regression.predict(self._table.transform(features)).tolist())
        return [[next(tags) for _ in words] for words in sentences]


def too_large(rows: Rows) -> str:
    """Return a note for the user if the data is too large for logistic regression, else ""."""
    words, tags = sum(len(row["words"]) for row in rows), len(_tags(rows))
    if words * tags <= MOST_FITTED:
        return ""
    return f"logistic regression is left out: {words:,} training words times {tags} tags are more than {MOST_FITTED:,}"


class Baselines:
    """Baselines of a task; they are fitted to the training rows once, for all evaluated splits."""

    def __init__(self) -> None:
        self._fitted: tuple[Rows, dict[str, Tagger]] = ((), {})

    def figures(self, fitted_on: Rows, rows: Rows) -> dict[str, float]:
        """Compute the F1 of each baseline on ``rows`` and, if tags encode no entities, its accuracy, in per cent."""
        if self._fitted[0] is not fitted_on:
            self._fitted = fitted_on, _fitted(fitted_on)
        words, truth = [row["words"] for row in rows], [row["tags"] for row in rows]
        return {
            f"{figure}_of_{name}": value
            for name, tagger in self._fitted[1].items()
            for figure, value in _scores(truth, tagger(words), fitted_on).items()
        }


def _fitted(rows: Rows) -> dict[str, Tagger]:
    """Fit taggers by name; logistic regression is left out without scikit-learn, for one tag, or if ``too_large``."""
    guess = MostFrequent(rows)
    taggers: dict[str, Tagger] = {"most_frequent_tag": lambda sentences: [guess(words) for words in sentences]}
    if not too_large(rows) and len(_tags(rows)) > 1:
        with suppress(UserError):
            taggers["logistic_regression"] = FeatureTagger(rows)
    return taggers


def _tags(rows: Rows) -> set[str]:
    return {tag for row in rows for tag in row["tags"]}


def _scores(truth: Tags, predicted: Tags, rows: Rows) -> dict[str, float]:
    names = sorted(_tags(rows) | {tag for tags in truth for tag in tags})
    if marks_entities(names):
        return {"f1": entity_f1(truth, predicted)}
    classes = {tag: i for i, tag in enumerate(names)}
    pairs = [(classes[a], classes[b]) for t, f in zip(truth, predicted, strict=True) for a, b in zip(t, f, strict=True)]
    scores = agreement(pairs)
    return {"accuracy": scores["accuracy"], "f1": scores["macro_f1"]}
