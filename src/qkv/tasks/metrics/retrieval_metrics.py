"""Metrics of retrieval: how often the right candidate is among the first."""

from __future__ import annotations

import numpy as np

AT = (1, 5, 10)


def ranks(scores: np.ndarray, asked: np.ndarray, offered: np.ndarray) -> np.ndarray:
    """Return the rank (Q), from 1, of the best right candidate of each query; equal scores count as if it were last.

    scores (Q, C): of the candidates.   asked (Q): content that each query looks for.   offered (C): content of each
    candidate.
    """
    right = asked[:, None] == offered
    best = np.where(right, scores, -np.inf).max(1)
    return 1 + ((scores >= best[:, None]) & ~right).sum(1)


def recalls(scores: np.ndarray, asked: np.ndarray, offered: np.ndarray) -> dict[int, float]:
    """Compute recall at k, in %, for each k of ``AT``: share of queries whose right candidate is among the first k."""
    places = ranks(scores, asked, offered)
    return {k: 100 * float((places <= k).mean()) for k in AT}


def both_ways(first: str, second: str, scores: np.ndarray, contents: np.ndarray) -> dict[str, float]:
    """Compute recall at k both ways, and their means, from scores (N, N) of the second input (rows) and the first.

    contents (N, 2): numbers of the contents of both inputs of each row. Equal contents are one candidate. The names are
    those of the inputs: ``image_to_text_recall_1`` is for images that look for their text.
    """
    one, other = (np.unique(contents[:, side], return_index=True)[1] for side in (0, 1))
    forth = recalls(scores[other].T, contents[:, 1], contents[other, 1])
    back = recalls(scores[:, one], contents[:, 0], contents[one, 0])
    figures = {f"recall_{k}": (forth[k] + back[k]) / 2 for k in AT}
    figures |= {f"{first}_to_{second}_recall_{k}": forth[k] for k in AT}
    return figures | {f"{second}_to_{first}_recall_{k}": back[k] for k in AT}
