"""Metrics of retrieval: how often the right candidate is among the first."""

from __future__ import annotations

import numpy as np

AT = (1, 5, 10)


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the rank (Q), from 1, of the best right candidate of each query; equal scores count as if it were last.

    scores, right (Q, C): score of each candidate, and whether it is right for the query.
    """
    best = np.where(right, scores, -np.inf).max(1, keepdims=True)
    return 1 + ((scores >= best) & ~right).sum(1)


def recalls(scores: np.ndarray, right: np.ndarray) -> dict[int, float]:
    """Compute recall at k, in %, for each k of ``AT``: share of queries with a right candidate among the first k."""
    places = ranks(scores, right)
    return {k: 100 * float((places <= k).mean()) for k in AT}


def both_ways(first: str, second: str, scores: np.ndarray, contents: np.ndarray) -> dict[str, float]:
    """Compute recall at k in both directions, and the means of both.

    scores (N, N): score of each second input (rows) with each first input (columns). contents (N, 2): a number for each
    of the two inputs of a row, equal for equal contents. Equal inputs count as one query and as one candidate. A
    candidate is right if it occurs in a row with the query. ``first``, ``second``: names of the inputs;
    ``image_to_text_recall_1`` is the recall of queries by image for texts.
    """
    (_, first_rows, first_index), (_, second_rows, second_index) = (
        np.unique(side, return_index=True, return_inverse=True) for side in contents.T
    )
    right = np.zeros((len(second_rows), len(first_rows)), bool)
    right[second_index, first_index] = True
    distinct = scores[np.ix_(second_rows, first_rows)]
    forth, back = recalls(distinct.T, right.T), recalls(distinct, right)
    figures = {f"recall_{k}": (forth[k] + back[k]) / 2 for k in AT}
    figures |= {f"{first}_to_{second}_recall_{k}": forth[k] for k in AT}
    return figures | {f"{second}_to_{first}_recall_{k}": back[k] for k in AT}
