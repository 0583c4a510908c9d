"""Words and their neighbours, for skip-gram and CBOW with negative sampling (Mikolov et al. 2013a, 2013b, "word2vec").

A word is dropped from the text before windows are laid, so windows reach across the gap, as in the authors' code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.data.corruption.checks import check_at_least, check_one_row
from qkv.spec.errors import UserError


class Pairs(NamedTuple):
    """Skip-gram: ``centres`` (P,) and one neighbour of each, ``contexts`` (P,); int64. A word of n neighbours is in n pairs."""

    centres: np.ndarray
    contexts: np.ndarray


class Contexts(NamedTuple):
    """CBOW: ``centres`` (P,) and all neighbours of each, ``contexts`` (P, 2 · window); int64. ``present`` (P, 2 · window) bool: which of
    them there are; the others are 0, and the mean leaves them out. The words before the centre stand in the first half, in order."""

    centres: np.ndarray
    contexts: np.ndarray
    present: np.ndarray


def keep_probabilities(counts: np.ndarray, threshold: float = 1e-5) -> np.ndarray:
    """(V,): min(1, √(t / f)), how likely each occurrence of a word is kept, f being its share of all ``counts`` (V,).

    The paper's formula (2013b, equation 5); the authors' code adds t / f to it. ``threshold`` t is above 0; 1 keeps all.
    ``UserError``: a threshold outside of (0, 1], negative counts.
    """
    if not 0 < threshold <= 1:
        raise UserError(f"threshold is {threshold}, but it is compared with the share of a word: give a number above 0 and up to 1")
    found = _checked(counts)
    share = found / max(found.sum(), 1)
    return np.sqrt(threshold / np.maximum(share, threshold))


def subsample(ids: np.ndarray, keep_probability: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """``ids`` (N,) int64 without the words that are dropped; None keeps all."""
    check_one_row(ids)
    if keep_probability is None:
        return ids.astype(np.int64)
    return ids[rng.random(len(ids)) < keep_probability[ids]].astype(np.int64)


def skip_gram_pairs(ids: np.ndarray, window: int, keep_probability: np.ndarray | None, rng: np.random.Generator) -> Pairs:
    """Every word of one text, ``ids`` (N,), with each word up to b places before and after it, b uniform from 1 to ``window`` for each.

    Pairs stand in the order of the text: by centre, then by neighbour. ``keep_probability`` (V,): of ``keep_probabilities``, or None.
    ``UserError``: a window below 1, ``ids`` that are not one row.
    """
    kept, place, near = _neighbours(ids, window, keep_probability, rng)
    centre, side = np.nonzero(near)
    return Pairs(kept[centre], kept[place[centre, side]])


def cbow_contexts(ids: np.ndarray, window: int, keep_probability: np.ndarray | None, rng: np.random.Generator) -> Contexts:
    """The same windows as of ``skip_gram_pairs``, one row a word; a word with no neighbour is left out."""
    kept, place, near = _neighbours(ids, window, keep_probability, rng)
    some = near.any(axis=1)
    contexts = np.where(near, kept[np.where(near, place, 0)], 0) if len(kept) else np.zeros(near.shape, np.int64)
    return Contexts(kept[some], contexts[some], near[some])


def _neighbours(
    ids: np.ndarray, window: int, keep_probability: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is kept of ``ids`` (M,), the places around each, (M, 2 · window), and which of these are in its window and in the text."""
    check_at_least("window", window, 1)
    kept = subsample(ids, keep_probability, rng)
    reach = rng.integers(1, window + 1, len(kept))
    distance = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    place = np.arange(len(kept))[:, None] + distance
    return kept, place, (abs(distance) <= reach[:, None]) & (place >= 0) & (place < len(kept))


class NegativeSampler:
    """Draws words with probability proportional to counts ** ``power``, in constant time each (the alias method: Walker 1977, Vose 1991).

    Word i has a column of height 1, filled up to ``threshold[i]`` by itself and above by ``alias[i]``. A word may be drawn that is the
    right one: the authors' code leaves such a negative out, ``negatives != contexts[:, None]`` is where it stays.

    ``counts`` (V,): how often each word occurs; one of 0 is never drawn. ``UserError``: no count above 0, or one below.
    """

    def __init__(self, counts: np.ndarray, power: float = 0.75):
        weights = _checked(counts)
        weights = np.where(weights > 0, np.maximum(weights, 1e-300) ** power, 0.0)
        if not weights.sum() > 0:
            raise UserError(f"of {len(weights)} counts none is above 0, so there is no word to draw")
        self.probabilities = weights / weights.sum()
        self._threshold, self._alias = alias_table(self.probabilities)

    def sample(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Independent words, int64, of ``shape``."""
        where = rng.random(shape) * len(self._threshold)
        column = where.astype(np.int64)
        return np.where(where - column < self._threshold[column], column, self._alias[column])


def alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(V,) thresholds and (V,) aliases: column i gives i below ``threshold[i]``, else ``alias[i]``; columns are equally likely.

    Σ over columns gives back p:  p[i] = (threshold[i] + Σ_j (1 - threshold[j]) · [alias[j] = i]) / V.
    """
    height = (probabilities * len(probabilities)).tolist()
    alias = list(range(len(height)))
    low = [i for i, h in enumerate(height) if h < 1]
    high = [i for i, h in enumerate(height) if h >= 1]
    threshold = [1.0] * len(height)
    while low and high:
        short, tall = low.pop(), high[-1]
        threshold[short], alias[short] = height[short], tall
        height[tall] -= 1 - height[short]
        if height[tall] < 1:
            low.append(high.pop())
    for rest in low:  # within rounding of 1, unless it is a word that must never be drawn
        if not probabilities[rest]:
            threshold[rest], alias[rest] = 0.0, int(np.argmax(probabilities))
    return np.array(threshold), np.array(alias, np.int64)


def _checked(counts: np.ndarray) -> np.ndarray:
    """``counts`` (V,) in float64."""
    found = np.asarray(counts, np.float64)
    if found.ndim != 1 or not (found >= 0).all() or not np.isfinite(found).all():
        raise UserError("counts must be one number a word, and none of them below 0")
    return found
