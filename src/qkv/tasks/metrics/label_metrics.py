"""Metrics of predicted labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Pairs = Sequence[tuple[int, int]]
"""(true class, predicted class) of each example."""


def counts(pairs: Pairs, num_classes: int) -> np.ndarray:
    """Count the confusion matrix (C, C): number of examples of class i (row) predicted as class j (column).

    ``pairs``: (true class, predicted class) of each example.
    """
    table = np.zeros((num_classes, num_classes), np.int64)
    if len(pairs):
        np.add.at(table, tuple(np.array(pairs).T), 1)
    return table


MOST_CLASSES = 40
"""Maximum number of classes in the confusion matrix; with more, it shows the classes with the most mistakes."""
_MOST_MISTAKES = 12


def agreement(pairs: Pairs) -> dict[str, float]:
    """Compute accuracy and macro F1 of (true, predicted) classes, in per cent.

    F1 = 2 TP / (2 TP + FP + FN), averaged over the classes that occur as truth or prediction.
    """
    if not len(pairs):
        return {"accuracy": float("nan"), "macro_f1": float("nan")}
    hits, true, predicted = _by_class(np.asarray(pairs), 1 + int(np.max(pairs)))
    either = true + predicted
    scores = 2 * hits[either > 0] / either[either > 0]
    return {"accuracy": 100 * float(hits.sum() / len(pairs)), "macro_f1": 100 * float(scores.mean())}


def _by_class(pairs: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count (true positives, true examples, predicted examples) per class, (C,) each."""
    true, predicted = pairs[:, 0], pairs[:, 1]
    some = (np.bincount(classes, minlength=num_classes) for classes in (true[true == predicted], true, predicted))
    hits, is_true, is_found = some
    return hits, is_true, is_found


def confusion(labels: Sequence[str], pairs: Pairs) -> dict[str, Any]:
    """Build the confusion matrix as a report section; memory is linear in classes and pairs.

    With more than ``MOST_CLASSES`` classes, it shows the classes with the most mistakes, and merges the others into the
    last row and column.
    """
    section = {"kind": "confusion", "title": "Confusion matrix"}
    if len(labels) <= MOST_CLASSES or not len(pairs):
        names = labels[:MOST_CLASSES]
        return {**section, "labels": list(names), "counts": counts(pairs, len(names)).tolist()}
    classes = np.asarray(pairs)
    hits, true, predicted = _by_class(classes, len(labels))
    worst = np.sort(np.argsort(2 * hits - true - predicted, kind="stable")[:MOST_CLASSES])
    place = np.full(len(labels), MOST_CLASSES)
    place[worst] = np.arange(MOST_CLASSES)
    table = counts(place[classes], MOST_CLASSES + 1)  # pyright: ignore[reportArgumentType]
    note = (
        f"The {MOST_CLASSES} of {len(labels):,} classes with the most mistakes; "
        "the last row and column are all others together."
    )
    names = [*(labels[i] for i in worst), "all others"]
    return {
        **section,
        "labels": names,
        "counts": table.tolist(),
        "others": True,
        "note": note,
        "mistakes": _mistakes(labels, classes),
    }


def _mistakes(labels: Sequence[str], pairs: np.ndarray) -> list[list[Any]]:
    """Build table rows of the most frequent mistakes: true class, predicted class, count."""
    wrong = pairs[pairs[:, 0] != pairs[:, 1]]
    each, times = np.unique(wrong, axis=0, return_counts=True)
    order = np.argsort(-times, kind="stable")[:_MOST_MISTAKES]
    return [[labels[each[i, 0]], labels[each[i, 1]], int(times[i])] for i in order]
