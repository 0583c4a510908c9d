"""What a simple method reaches on the same data: the figure that a model has to pass to be worth its while."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.spec.errors import UserError
from qkv.tasks.text_metrics import metric_library

MOST_ROWS = 100_000
"""Training texts beyond which the baseline takes longer than it is worth."""


def bag_of_words(texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str]) -> list[str]:
    """The labels that logistic regression over words gives to ``unseen``; trained on ``texts``.

    Each text is the set of its lower-cased words; the regression has an L2 penalty of 1.
    Raises ``UserError`` if scikit-learn is not installed.
    """
    features = metric_library("sklearn.feature_extraction.text").CountVectorizer(binary=True, token_pattern=r"(?u)\S+")
    regression = metric_library("sklearn.linear_model").LogisticRegression(max_iter=1000)
    regression.fit(features.fit_transform(texts), list(labels))
    return [str(label) for label in regression.predict(features.transform(unseen))]


def bag_of_words_accuracy(texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str], truth: Sequence[str]) -> float | None:
    """The share of ``unseen`` that it labels as in ``truth``, 0 to 100; None where it is not at hand or there are too many texts."""
    if len(texts) > MOST_ROWS:
        return None
    try:
        found = bag_of_words(texts, labels, unseen)
    except UserError:
        return None
    return 100 * sum(a == b for a, b in zip(found, truth, strict=True)) / max(1, len(truth))
