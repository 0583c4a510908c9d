"""Denoising (Lewis et al. 2020, "BART"): corrupt a text with one or several noises; the target is the original text.

A noise is a frozen dataclass, called with the tokens of one text and a random generator, that returns the corrupted
tokens. The original BART uses ``(SentencePermutation(full_stops), TextInfilling(mask_id, 0.3))``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qkv.data.checks import check_at_least, check_one_row, check_share


class Noise(Protocol):
    """Protocol of a noise: one way to corrupt a text."""

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, /) -> np.ndarray:
        """Return a corrupted copy of the tokens ``ids`` (N,)."""
        ...


def denoise(ids: np.ndarray, rng: np.random.Generator, noises: Sequence[Noise]) -> np.ndarray:
    """Apply ``noises`` in turn to ``ids`` (N,), a text without special tokens; return int64 ids of any length, even 0.

    The target is ``ids``. Raises ``UserError`` if ``ids`` is not one-dimensional.
    """
    check_one_row(ids)
    damaged = ids.astype(np.int64)
    for noise in noises:
        damaged = noise(damaged, rng)
    return damaged


def count(length: int, rate: float) -> int:
    """Compute ceil(length · rate), as in the published code; a product within 1e-9 of an integer is not rounded up."""
    return min(math.ceil(length * rate - 1e-9), length)


def some(length: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Sample a mask (N,) bool with ``count(length, rate)`` True entries, uniformly among all such masks."""
    chosen = np.zeros(length, bool)
    chosen[rng.choice(length, count(length, rate), replace=False)] = True
    return chosen


@dataclass(frozen=True)
class TokenMasking:
    """Replace a fraction ``rate`` of the tokens, rounded up, by ``mask_id``."""

    mask_id: int
    rate: float = 0.3

    def __post_init__(self) -> None:
        check_share("rate", self.rate)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.where(some(len(ids), self.rate, rng), self.mask_id, ids)


@dataclass(frozen=True)
class TokenDeletion:
    """Delete a fraction ``rate`` of the tokens, rounded up, without marking the positions."""

    rate: float = 0.3

    def __post_init__(self) -> None:
        check_share("rate", self.rate)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return ids[~some(len(ids), self.rate, rng)]


@dataclass(frozen=True)
class TextInfilling:
    """Replace spans of tokens by one ``mask_id`` each; a span of length 0 inserts a mask between two tokens.

    Span lengths are Poisson with mean ``mean_length``, drawn until they cover a fraction ``rate`` of the tokens,
    rounded up; the last span is shortened to fit. Spans do not overlap, and all placements are equally likely.
    """

    mask_id: int
    rate: float = 0.3
    mean_length: float = 3.0

    def __post_init__(self) -> None:
        check_share("rate", self.rate)
        check_at_least("mean_length", self.mean_length, 1)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        lengths = self.lengths(len(ids), rng)
        places = len(ids) - int(lengths.sum()) + len(lengths)
        return self.fill(ids, lengths, np.sort(rng.choice(places, len(lengths), replace=False)))

    def lengths(self, length: int, rng: np.random.Generator) -> np.ndarray:
        """Sample span lengths, in text order, for a text of ``length`` tokens."""
        target = count(length, self.rate)
        drawn = np.zeros(0, np.int64)
        while drawn.sum() < target:
            drawn = np.append(drawn, rng.poisson(self.mean_length, 1 + int(target / self.mean_length)))
        until = np.cumsum(drawn)
        spans = int(np.searchsorted(until, target)) + 1 if target else 0
        lengths = drawn[:spans]
        if spans:
            lengths[-1] -= until[spans - 1] - target
        return rng.permutation(lengths)  # shuffled, so that the shortened span is not always the last

    def fill(self, ids: np.ndarray, lengths: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Replace spans of ``lengths`` by masks; ``places``: ascending positions of the masks in the corrupted text."""
        before = np.cumsum(lengths) - lengths
        starts = places - np.arange(len(lengths)) + before
        opens = np.zeros(len(ids) + 1, np.int64)
        np.add.at(opens, starts, 1)
        np.add.at(opens, starts + lengths, -1)
        rest = np.cumsum(opens[:-1]) == 0
        damaged = np.full(int(rest.sum()) + len(lengths), self.mask_id, np.int64)
        is_mask = np.zeros(len(damaged), bool)
        is_mask[places] = True
        damaged[~is_mask] = ids[rest]
        return damaged


@dataclass(frozen=True)
class SentencePermutation:
    """Permute the sentences uniformly at random.

    A sentence ends with a run of ids in ``ends`` (full stops) or at the end of the text.
    """

    ends: Collection[int]

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        sentences = self.sentences(ids)
        return np.concatenate([ids[:0], *(sentences[i] for i in rng.permutation(len(sentences)))])

    def sentences(self, ids: np.ndarray) -> list[np.ndarray]:
        """Split the text into non-empty sentences."""
        stops = np.isin(ids, list(self.ends))
        last = stops[:-1] & ~stops[1:]
        return [sentence for sentence in np.split(ids, np.flatnonzero(last) + 1) if len(sentence)]


@dataclass(frozen=True)
class DocumentRotation:
    """Rotate the text to start at a uniformly random token."""

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.roll(ids, -int(rng.integers(len(ids)))) if len(ids) else ids.copy()
