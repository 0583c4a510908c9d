"""Baselines: scores of a simple method on the same data, which a model should exceed."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.spec.errors import UserError
from qkv.tasks.text_metrics import metric_library

MOST_ROWS = 100_000
"""Maximum number of training texts for the baseline."""


MOST_WEIGHTS = 2_000_000
"""Maximum of classes times words for the baseline."""


def bag_of_words(texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str]) -> list[str]:
    """Labels of ``unseen`` predicted by logistic regression over words, trained on ``texts``.

    Each text is the set of its lower-cased words; the regression has an L2 penalty of 1. Raises ``UserError`` if
    scikit-learn is not installed.
    """
    features = metric_library("sklearn.feature_extraction.text").CountVectorizer(binary=True, token_pattern=r"(?u)\S+")
    regression = metric_library("sklearn.linear_model").LogisticRegression(max_iter=1000)
    regression.fit(features.fit_transform(texts), list(labels))
    return [str(label) for label in regression.predict(features.transform(unseen))]


def too_large(texts: Sequence[str], labels: Sequence[str]) -> str:
    """Note for the user that the data is too large for the bag-of-words baseline; "" if it is not."""
    if len(texts) > MOST_ROWS:
        return f"the bag of words is left out: {len(texts):,} training texts are more than {MOST_ROWS:,}"
    words, classes = len({word for text in texts for word in text.lower().split()}), len(set(labels))
    if classes * words > MOST_WEIGHTS:
        return (
            f"the bag of words is left out: {classes:,} classes times {words:,} words are more than {MOST_WEIGHTS:,} "
            "weights"
        )
    return ""


def bag_of_words_accuracy(
    texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str], truth: Sequence[str]
) -> float | None:
    """Accuracy of ``bag_of_words`` on ``unseen`` texts with labels ``truth``, in per cent.

    None without scikit-learn, or if ``too_large``.
    """
    if too_large(texts, labels):
        return None
    try:
        found = bag_of_words(texts, labels, unseen)
    except UserError:
        return None
    return 100 * sum(a == b for a, b in zip(found, truth, strict=True)) / max(1, len(truth))
