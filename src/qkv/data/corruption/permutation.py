"""Permutation language modelling (Yang et al. 2019, "XLNet"): tokens are predicted one after another in a random order.

The model keeps two vectors a position. The content stream knows the token of its position; the query stream knows only the position, and
predicts the token. Both see tokens that come earlier in the order:

    content of i sees content of j   if order[j] <= order[i]
    query of i sees content of j     if order[j] <  order[i]

Only the last tokens of the order are predicted (the paper's partial prediction): all others come first, at once, and see one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qkv.data.batch import IGNORED
from qkv.data.corruption.checks import check_at_least, check_rows, check_share


@dataclass(frozen=True)
class PermutationBatch:
    """``ids`` (B, N), the text with nothing hidden: what hides a token is the masks. ``targets`` (B, N): the token of the position itself,
    and not the next one; ``IGNORED`` where nothing is predicted. ``order`` (B, N): 0 for what is given, 1, 2, … for the targets of a row.
    All int64. ``content_mask`` and ``query_mask`` (B, N, N) bool: whether position i (second axis) may see position j (third axis).
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
    """Targets are spans of 1 to ``max_span`` tokens that make up about a share ``rate``, the paper's 1/K with K = 6; their order is uniform.

    ``special`` (B, N) bool tokens are never targets, and all see them. ``padding`` (B, N) bool is neither target nor seen, but by its own
    content stream, so that no row of ``content_mask`` is empty. Rows of ``query_mask`` are empty where nothing is predicted, and for the
    first target of a row that has nothing but targets. Spans stand apart from one another or meet, so a longer one may appear.

    The order is one over the whole row: XLNet's two halves, for reuse of the first as memory of the second, are not made.

    ``UserError``: a ``rate`` outside of [0, 1], a ``max_span`` below 1, other shapes.
    """
    check_rows(ids, special=special, padding=padding)
    check_share("rate", rate)
    check_at_least("max_span", max_span, 1)
    sizes, offsets = draw(rng, ids.shape, rate, max_span)
    chosen = spans(sizes, offsets, rate, ids.shape[1])
    return arrange(ids, chosen & ~special.astype(bool), rng.random(ids.shape), padding)


def context_lengths(sizes: np.ndarray, rate: float) -> np.ndarray:
    """floor(sizes / rate): how many tokens a span has to itself and what surrounds it, so that it is a share ``rate`` of them."""
    return (sizes / rate).astype(np.int64)


def draw(rng: np.random.Generator, shape: tuple[int, ...], rate: float, max_span: int) -> tuple[np.ndarray, np.ndarray]:
    """The sizes of the spans, (B, S), and where each begins in its own context, for rows of ``shape`` (B, N); enough of them for the row."""
    batch, length = shape
    if rate < max_span / 2**53:  # 0, or so low that the context of a span is longer than any text
        return np.zeros((batch, 0), np.int64), np.zeros((batch, 0), np.int64)
    sizes = rng.integers(1, max_span + 1, (batch, math.ceil(length / math.floor(1 / rate))))
    return sizes, rng.integers(0, context_lengths(sizes, rate) - sizes + 1)


def spans(sizes: np.ndarray, offsets: np.ndarray, rate: float, length: int) -> np.ndarray:
    """(B, N) bool: contexts are laid end to end, and in each one span is chosen. What lies beyond ``length`` is cut off."""
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


def arrange(ids: np.ndarray, chosen: np.ndarray, priority: np.ndarray, padding: np.ndarray | None = None) -> PermutationBatch:
    """``permutation_targets`` with the targets ``chosen`` (B, N) bool and their order given: nothing is drawn here.

    ``priority`` (B, N): the target with the lowest number is predicted first; of equal ones, the one further left.
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
    return PermutationBatch(ids.astype(np.int64), np.where(chosen, ids, IGNORED).astype(np.int64), order, content, query)


def order_of(chosen: np.ndarray, priority: np.ndarray) -> np.ndarray:
    """(B, N) int64: 0 where not ``chosen``, else 1, 2, … by rising ``priority`` within the row."""
    places = np.argsort(np.where(chosen, priority, -np.inf), axis=1, kind="stable")
    rank = np.empty(chosen.shape, np.int64)
    np.put_along_axis(rank, places, np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape), axis=1)
    given = chosen.shape[1] - chosen.sum(axis=1, keepdims=True)
    return np.where(chosen, rank - given + 1, 0)
