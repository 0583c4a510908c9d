"""Denoising (Lewis et al. 2020, "BART"): a text is damaged in one or several ways, and the model writes the whole text again.

A noise is a frozen dataclass that is called with the tokens of one text and a generator, and gives the damaged tokens. What is to be
written is always the text itself. BART's own choice is ``(SentencePermutation(full_stops), TextInfilling(mask_id, 0.3))``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qkv.data.corruption.checks import check_at_least, check_one_row, check_share


class Noise(Protocol):
    """One way to damage a text."""

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, /) -> np.ndarray:
        """The damaged tokens of ``ids`` (N,), which is left as it is."""
        ...


def denoise(ids: np.ndarray, rng: np.random.Generator, noises: Sequence[Noise]) -> np.ndarray:
    """``ids`` (N,), a text without special tokens, damaged by each of ``noises`` in turn: int64, of any length from 0 on.

    The target is ``ids``. ``UserError``: ``ids`` that are not one row.
    """
    check_one_row(ids)
    damaged = ids.astype(np.int64)
    for noise in noises:
        damaged = noise(damaged, rng)
    return damaged


def count(length: int, rate: float) -> int:
    """How many tokens a share of ``length`` is, rounded up as in the published code; a product that is whole but for rounding is whole."""
    return min(math.ceil(length * rate - 1e-9), length)


def some(length: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """(N,) bool with ``count(length, rate)`` places, uniform among all such sets."""
    chosen = np.zeros(length, bool)
    chosen[rng.choice(length, count(length, rate), replace=False)] = True
    return chosen


@dataclass(frozen=True)
class TokenMasking:
    """A share ``rate`` of the tokens, rounded up, becomes ``mask_id``."""

    mask_id: int
    rate: float = 0.3

    def __post_init__(self) -> None:
        check_share("rate", self.rate)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.where(some(len(ids), self.rate, rng), self.mask_id, ids)


@dataclass(frozen=True)
class TokenDeletion:
    """A share ``rate`` of the tokens, rounded up, is left out; where something is missing is not told."""

    rate: float = 0.3

    def __post_init__(self) -> None:
        check_share("rate", self.rate)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return ids[~some(len(ids), self.rate, rng)]


@dataclass(frozen=True)
class TextInfilling:
    """Spans of tokens, each replaced by one ``mask_id`` whatever its length; a span of no token puts a mask between two tokens.

    Lengths are Poisson with mean ``mean_length``, drawn until together they are a share ``rate`` of the tokens, rounded up; the span that
    goes beyond is cut to fit. Spans do not overlap, and every way to lay them out is equally likely.
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
        """The lengths of the spans of a text of ``length`` tokens, in the order in which they stand."""
        wanted = count(length, self.rate)
        drawn = np.zeros(0, np.int64)
        while drawn.sum() < wanted:
            drawn = np.append(drawn, rng.poisson(self.mean_length, 1 + int(wanted / self.mean_length)))
        until = np.cumsum(drawn)
        spans = int(np.searchsorted(until, wanted)) + 1 if wanted else 0
        lengths = drawn[:spans]
        if spans:
            lengths[-1] -= until[spans - 1] - wanted
        return rng.permutation(lengths)  # or else the one that was cut would always be the last of the text

    def fill(self, ids: np.ndarray, lengths: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The damaged text, given the spans' ``lengths`` and where in the damaged text their masks stand, ``places``, which rise."""
        before = np.cumsum(lengths) - lengths
        starts = places - np.arange(len(lengths)) + before
        opens = np.zeros(len(ids) + 1, np.int64)
        np.add.at(opens, starts, 1)
        np.add.at(opens, starts + lengths, -1)
        kept = np.cumsum(opens[:-1]) == 0
        damaged = np.full(int(kept.sum()) + len(lengths), self.mask_id, np.int64)
        is_mask = np.zeros(len(damaged), bool)
        is_mask[places] = True
        damaged[~is_mask] = ids[kept]
        return damaged


@dataclass(frozen=True)
class SentencePermutation:
    """The sentences in an order that is uniform among all. A sentence goes up to and with a run of ``ends``, the ids of full stops; what
    follows the last of them is a sentence too."""

    ends: Collection[int]

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        sentences = self.sentences(ids)
        return np.concatenate([ids[:0], *(sentences[i] for i in rng.permutation(len(sentences)))])

    def sentences(self, ids: np.ndarray) -> list[np.ndarray]:
        """The text in pieces, none of them empty."""
        stops = np.isin(ids, list(self.ends))
        last = stops[:-1] & ~stops[1:]
        return [sentence for sentence in np.split(ids, np.flatnonzero(last) + 1) if len(sentence)]


@dataclass(frozen=True)
class DocumentRotation:
    """The text begins at a token that is uniform among all, and what stood before it follows at the end."""

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.roll(ids, -int(rng.integers(len(ids)))) if len(ids) else ids.copy()
