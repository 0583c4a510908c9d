"""Features of words for tagging: the word, its affixes, character n-grams and shape, and the neighbouring words.

Features of conditional random fields for names (McCallum and Li 2003; Ratinov and Roth 2009), and the character n-grams
of Bojanowski et al. 2017. ``strings`` names them; ``hashed_words`` gives their buckets (Weinberger et al. 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby

import numpy as np

from qkv.data.features.ngrams import character_ngrams, hashed
from qkv.spec.processors import WordFeatures

PADDING = -1
"""Padding value of the buckets of words that have fewer features than others."""
BORDER = "\n"
"""Stands for the word before the first and after the last word of a sentence; no word contains a line break."""
_LONGEST_RUN = 4
_CACHED = 1 << 16

Hashed = Callable[[Sequence[str]], np.ndarray]
"""Function from N words to their buckets (N, F) int32."""


def shape(word: str) -> str:
    """Return the shape of a word: X for upper-case letters, x for others, d for digits: "Xxxx-dd" for "Smith-42".

    Other characters stand for themselves; runs of one symbol are truncated to four.
    """
    return "".join(_run(symbol, len(list(run))) for symbol, run in groupby(map(_symbol, word)))


def _symbol(character: str) -> str:
    if character.isalpha():
        return "X" if character.isupper() else "x"
    return "d" if character.isdigit() else character


def _run(symbol: str, length: int) -> str:
    return symbol * min(length, _LONGEST_RUN)


def strings(words: Sequence[str], part: WordFeatures) -> list[list[str]]:
    """Return the features of each word of a sentence as strings."""
    return [[*own_features(word, part), *_beside(words, i, part)] for i, word in enumerate(words)]


def own_features(word: str, part: WordFeatures) -> Iterator[str]:
    """Yield the features of a word alone: lower-cased word, affixes, n-grams, shape, and shape with runs of length
    one.
    """
    lower = word.lower()
    yield f"word {lower}"
    for size in range(1, min(part.affixes, len(lower)) + 1):
        yield f"prefix {lower[:size]}"
        yield f"suffix {lower[-size:]}"
    if part.longest:
        yield from (f"ngram {ngram}" for ngram in character_ngrams(lower, part.shortest, part.longest))
    if part.shape:
        form = shape(word)
        yield f"shape {form}"
        yield f"case {''.join(symbol for symbol, _ in groupby(form))}"


def _beside(words: Sequence[str], place: int, part: WordFeatures) -> Iterator[str]:
    for offset in _offsets(part):
        yield from neighbour_features(_at(words, place + offset), offset, part)


def neighbour_features(word: str, offset: int, part: WordFeatures) -> Iterator[str]:
    """Yield the features that a word gets from its neighbour ``word``, ``offset`` words after it (before it if
    negative).
    """
    yield f"{offset} word {word.lower()}"
    if part.shape:
        yield f"{offset} shape {shape(word)}"


def _offsets(part: WordFeatures) -> list[int]:
    return [offset for offset in range(-part.neighbours, part.neighbours + 1) if offset]


def _at(words: Sequence[str], place: int) -> str:
    return words[place] if 0 <= place < len(words) else BORDER


def hashed_words(part: WordFeatures) -> Hashed:
    """Return the function that hashes the features of a sentence's words (``strings``) to buckets.

    Words with fewer features than others are padded with ``PADDING``.
    """

    @lru_cache(_CACHED)
    def features_of_word(word: str) -> np.ndarray:
        return _buckets(own_features(word, part))

    @lru_cache(_CACHED)
    def beside(word: str, offset: int) -> np.ndarray:
        return _buckets(neighbour_features(word, offset, part))

    def _buckets(features: Iterator[str]) -> np.ndarray:
        return np.array([hashed(feature, part.buckets) for feature in features], np.int32)

    def of(words: Sequence[str]) -> np.ndarray:
        rows = [
            np.concatenate(
                (features_of_word(word), *(beside(_at(words, i + offset), offset) for offset in _offsets(part)))
            )
            for i, word in enumerate(words)
        ]
        table = np.full((len(rows), max(map(len, rows), default=1)), PADDING, np.int32)
        for place, row in enumerate(rows):
            table[place, : len(row)] = row
        return table

    return of
