"""Training pairs for skip-gram and CBOW with negative sampling (Mikolov et al. 2013a, 2013b, "word2vec").

Subsampled words are removed before windows are formed, so windows extend across them, as in the authors' code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.data.checks import check_at_least, check_one_row
from qkv.system.errors import UserError


class Pairs(NamedTuple):
    """Skip-gram pairs: centre words ``centres`` (P,) and one context word per pair, ``contexts`` (P,); int64.

    A word with n neighbours gives n pairs.
    """

    centres: np.ndarray
    contexts: np.ndarray


class Contexts(NamedTuple):
    """CBOW examples: centre words ``centres`` (P,) and all their context words ``contexts`` (P, 2 · window); int64.

    ``present`` (P, 2 · window) bool marks valid context words; the others are 0 and excluded from the mean. Words
    before the centre are in the first half, in order.
    """

    centres: np.ndarray
    contexts: np.ndarray
    present: np.ndarray


def keep_probabilities(counts: np.ndarray, threshold: float = 1e-5) -> np.ndarray:
    """Compute the probability (V,) of keeping an occurrence of a word: min(1, √(t / f)).

    f: relative frequency of the word in ``counts`` (V,). This is the formula of the paper (2013b, equation 5); the
    authors' code adds t / f. ``threshold`` t: 1 keeps all words.
    Raises ``UserError`` for a threshold outside (0, 1] or negative counts.
    """
    if not 0 < threshold <= 1:
        raise UserError(
            f"threshold is {threshold}, but it is compared with relative word frequencies: "
            "give a number above 0 and at most 1"
        )
    totals = _checked(counts)
    share = totals / max(totals.sum(), 1)
    return np.sqrt(threshold / np.maximum(share, threshold))


def subsample(ids: np.ndarray, keep_probability: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Subsample ``ids`` (N,); return the kept ids as int64. ``keep_probability`` None keeps all."""
    check_one_row(ids)
    if keep_probability is None:
        return ids.astype(np.int64)
    return ids[rng.random(len(ids)) < keep_probability[ids]].astype(np.int64)


def skip_gram_pairs(
    ids: np.ndarray, window: int, keep_probability: np.ndarray | None, rng: np.random.Generator
) -> Pairs:
    """Pair each word of a text ``ids`` (N,) with all words at most b away, b uniform in 1..``window`` per centre.

    Pairs are in text order: by centre, then by context word. ``keep_probability`` (V,): from ``keep_probabilities``, or
    None. Raises ``UserError`` for a window below 1, or ``ids`` that are not one-dimensional.
    """
    words, place, near = _neighbours(ids, window, keep_probability, rng)
    centre, side = np.nonzero(near)
    return Pairs(words[centre], words[place[centre, side]])


def cbow_contexts(
    ids: np.ndarray, window: int, keep_probability: np.ndarray | None, rng: np.random.Generator
) -> Contexts:
    """Build CBOW examples with the windows of ``skip_gram_pairs``, one row per word; omit words without context."""
    words, place, near = _neighbours(ids, window, keep_probability, rng)
    some = near.any(axis=1)
    contexts = np.where(near, words[np.where(near, place, 0)], 0) if len(words) else np.zeros(near.shape, np.int64)
    return Contexts(words[some], contexts[some], near[some])


def _neighbours(
    ids: np.ndarray, window: int, keep_probability: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (kept ids (M,), context positions (M, 2 · window), mask of positions inside the window and the text)."""
    check_at_least("window", window, 1)
    words = subsample(ids, keep_probability, rng)
    reach = rng.integers(1, window + 1, len(words))
    distance = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    place = np.arange(len(words))[:, None] + distance
    return words, place, (abs(distance) <= reach[:, None]) & (place >= 0) & (place < len(words))


class NegativeSampler:
    """Sampler of words with p ∝ counts ** ``power``, in constant time per word (alias method: Walker 1977, Vose 1991).

    A sample may equal the true context word. The authors' code skips such negatives;
    ``negatives != contexts[:, None]`` masks them.

    ``counts`` (V,): word frequencies; words of count 0 are never sampled. Raises ``UserError`` if no count is positive
    or a count is negative.
    """

    def __init__(self, counts: np.ndarray, power: float = 0.75):
        weights = _checked(counts)
        weights = np.where(weights > 0, np.maximum(weights, 1e-300) ** power, 0.0)
        if not weights.sum() > 0:
            raise UserError(f"none of {len(weights)} counts is above 0, so there is no word to sample")
        self.probabilities = weights / weights.sum()
        self._threshold, self._alias = alias_table(self.probabilities)

    def sample(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Draw independent samples, int64, of ``shape``."""
        where = rng.random(shape) * len(self._threshold)
        column = where.astype(np.int64)
        return np.where(where - column < self._threshold[column], column, self._alias[column])


def alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Build the alias table: thresholds (V,) and aliases (V,).

    To sample, draw i uniformly; the sample is i with probability ``threshold[i]``, else ``alias[i]``.

    Hence p[i] = (threshold[i] + Σ_j (1 - threshold[j]) · [alias[j] = i]) / V.
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
    for rest in low:  # their height is 1 up to rounding, except for words of probability 0
        if not probabilities[rest]:
            threshold[rest], alias[rest] = 0.0, int(np.argmax(probabilities))
    return np.array(threshold), np.array(alias, np.int64)


def _checked(counts: np.ndarray) -> np.ndarray:
    """Convert ``counts`` (V,) to float64. Raises ``UserError`` for another shape, or negative or non-finite counts."""
    array = np.asarray(counts, np.float64)
    if array.ndim != 1 or not (array >= 0).all() or not np.isfinite(array).all():
        raise UserError("counts must be one non-negative number per word")
    return array
