"""Permutation language modelling (Yang et al. 2019, "XLNet"): predict tokens autoregressively in a random order.

The model keeps two vectors per position. The content stream includes the token at its position; the query stream
includes only the position and predicts the token. Both attend to tokens earlier in the order:

    content of i sees content of j   if order[j] <= order[i]
    query of i sees content of j     if order[j] <  order[i]

Only the last tokens of the order are predicted (the paper's partial prediction). All other tokens have order 0 and
attend to one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qkv.data.batching.batch import IGNORED
from qkv.data.checks import check_at_least, check_rows, check_share


@dataclass(frozen=True)
class PermutationBatch:
    """Batch of permutation language modelling; int64 except for the masks.

    ``ids`` (B, N): unmodified text; tokens are hidden by the masks.
    ``targets`` (B, N): token at the same position (not the next one), ``IGNORED`` if not predicted.
    ``order`` (B, N): 0 for tokens that are not predicted, 1, 2, … for targets.
    ``content_mask``, ``query_mask`` (B, N, N) bool: True if position i (second axis) may attend to position j (third).
    """

    ids: np.ndarray
    targets: np.ndarray
    order: np.ndarray
    content_mask: np.ndarray
    query_mask: np.ndarray


def permutation_targets(
    ids: np.ndarray,
    special: np.ndarray,
    rng: np.random.Generator,
    rate: float = 1 / 6,
    max_span: int = 5,
    padding: np.ndarray | None = None,
) -> PermutationBatch:
    """Select spans of 1 to ``max_span`` tokens as targets, in uniformly random order.

    Targets are about a fraction ``rate`` of the tokens (the paper's 1/K, K = 6).

    ``special`` (B, N) bool: tokens that are never targets and visible to all. ``padding`` (B, N) bool: tokens that are
    neither targets nor visible. A padding token is visible only to its own content stream, so that no row of
    ``content_mask`` is empty. Rows of ``query_mask`` are empty for positions that are not predicted, and for the first
    target of a row that consists of targets only. Adjacent spans may form a longer span.

    The order covers the whole row; XLNet's split into two halves, the first reused as memory of the second, is not
    implemented.

    Raises ``UserError`` for a ``rate`` outside [0, 1], ``max_span`` below 1, or wrong shapes.
    """
    check_rows(ids, special=special, padding=padding)
    check_share("rate", rate)
    check_at_least("max_span", max_span, 1)
    sizes, offsets = draw(rng, ids.shape, rate, max_span)
    chosen = spans(sizes, offsets, rate, ids.shape[1])
    return arrange(ids, chosen & ~special.astype(bool), rng.random(ids.shape), padding)


def context_lengths(sizes: np.ndarray, rate: float) -> np.ndarray:
    """Compute floor(sizes / rate): length of each span's segment, of which the span is a fraction ``rate``."""
    return (sizes / rate).astype(np.int64)


def draw(rng: np.random.Generator, shape: tuple[int, ...], rate: float, max_span: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample sizes (B, S) of spans and their offsets (B, S) in their segments, enough for rows of ``shape`` (B, N)."""
    batch, length = shape
    if rate < max_span / 2**53:  # 0, or so small that the segment of a span exceeds any text
        return np.zeros((batch, 0), np.int64), np.zeros((batch, 0), np.int64)
    sizes = rng.integers(1, max_span + 1, (batch, math.ceil(length / math.floor(1 / rate))))
    return sizes, rng.integers(0, context_lengths(sizes, rate) - sizes + 1)


def spans(sizes: np.ndarray, offsets: np.ndarray, rate: float, length: int) -> np.ndarray:
    """Build the target mask (B, N) bool from concatenated segments with one span each, truncated to ``length``."""
    batch, number = sizes.shape
    if not number:
        return np.zeros((batch, length), bool)
    contexts = context_lengths(sizes, rate)
    starts = np.minimum(np.cumsum(contexts, axis=1) - contexts + offsets, length)
    stops = np.minimum(starts + sizes, length)
    opens = np.zeros((batch, length + 1), np.int64)
    row = np.broadcast_to(np.arange(batch)[:, None], sizes.shape)
    np.add.at(opens, (row, starts), 1)
    np.add.at(opens, (row, stops), -1)
    return np.cumsum(opens[:, :-1], axis=1) > 0


def arrange(
    ids: np.ndarray, chosen: np.ndarray, priority: np.ndarray, padding: np.ndarray | None = None
) -> PermutationBatch:
    """Build the batch of ``permutation_targets`` for given targets ``chosen`` (B, N) bool; deterministic.

    ``priority`` (B, N): targets are predicted by ascending priority, ties from left to right.
    """
    if padding is not None:
        padding = padding.astype(bool)
        chosen = chosen & ~padding
    order = order_of(chosen, priority)
    content = order[:, None, :] <= order[:, :, None]
    query = order[:, None, :] < order[:, :, None]
    if padding is not None:
        seen = ~padding[:, None, :]
        content = content & seen | np.eye(ids.shape[1], dtype=bool)
        query = query & seen
    return PermutationBatch(
        ids.astype(np.int64), np.where(chosen, ids, IGNORED).astype(np.int64), order, content, query
    )


def order_of(chosen: np.ndarray, priority: np.ndarray) -> np.ndarray:
    """Compute the order (B, N) int64: 0 where not ``chosen``, else 1, 2, … by ascending ``priority`` in the row."""
    places = np.argsort(np.where(chosen, priority, -np.inf), axis=1, kind="stable")
    rank = np.empty(chosen.shape, np.int64)
    np.put_along_axis(rank, places, np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape), axis=1)
    hidden = chosen.shape[1] - chosen.sum(axis=1, keepdims=True)
    return np.where(chosen, rank - hidden + 1, 0)
