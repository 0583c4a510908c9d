"""Metrics of scores that rank positive above negative cases."""

from __future__ import annotations

import numpy as np

HITS = 20


def ranking(targets: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Compute ranking metrics, in %, of ``scores`` (M) for ``targets`` (M), 1 or 0; all 0 unless both targets occur.

    AUC: share of (positive, negative) pairs in which the positive case scores higher; ties count half. Average
    precision: Σ_k (R_k - R_{k-1}) P_k over thresholds. Hits at 20: share of positive cases that score above the
    20th-best negative case, or above the worst if there are fewer than 20.
    """
    positive, negative = scores[targets == 1], np.sort(scores[targets == 0])[::-1]
    names = ("auc", "average_precision", f"hits_at_{HITS}")
    if not len(positive) or not len(negative):
        return dict.fromkeys(names, 0.0)
    rising = negative[::-1]
    below = np.searchsorted(rising, positive, "left") + np.searchsorted(rising, positive, "right")
    auc = below.mean() / (2 * len(negative))
    bound = negative[min(HITS, len(negative)) - 1]
    values = auc, average_precision(targets, scores), (positive > bound).mean()
    return {name: 100 * float(value) for name, value in zip(names, values, strict=True)}


def average_precision(targets: np.ndarray, scores: np.ndarray) -> float:
    """Compute the average precision of ``scores``; equal scores form one threshold."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    right = np.cumsum(targets[order])[last]
    recall = right / right[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * right / (last + 1)))
