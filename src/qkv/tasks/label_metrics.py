"""Figures of labels that were predicted beside those that are true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Pairs = Sequence[tuple[int, int]]
"""(true class, predicted class) of each example."""


def counts(pairs: Pairs, num_classes: int) -> np.ndarray:
    """How many examples of class i (rows) were taken for class j (columns)."""
    table = np.zeros((num_classes, num_classes), np.int64)
    if len(pairs):
        np.add.at(table, tuple(np.array(pairs).T), 1)
    return table


def agreement(pairs: Pairs) -> dict[str, float]:
    """Accuracy, and F1 = 2 TP / (2 TP + FP + FN) averaged over the classes that are true or predicted somewhere; both 0 to 100."""
    if not len(pairs):
        return {"accuracy": float("nan"), "macro_f1": float("nan")}
    table = counts(pairs, 1 + int(np.max(pairs)))
    hits, either = np.diag(table), table.sum(0) + table.sum(1)
    scores = 2 * hits[either > 0] / either[either > 0]
    return {"accuracy": 100 * float(hits.sum() / table.sum()), "macro_f1": 100 * float(scores.mean())}


def confusion(labels: Sequence[str], pairs: Pairs) -> dict[str, Any]:
    """The confusion matrix as a section of a report."""
    return {"kind": "confusion", "title": "What is taken for what", "labels": list(labels), "counts": counts(pairs, len(labels)).tolist()}
