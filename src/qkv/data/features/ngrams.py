"""Hashed n-grams of words and characters: features of a text without a dictionary.

Bag of Tricks for Efficient Text Classification (Joulin et al. 2017); Enriching Word Vectors with Subword Information
(Bojanowski et al. 2017); feature hashing (Weinberger et al. 2009).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, singledispatch
from typing import NamedTuple
from zlib import crc32

import numpy as np

from qkv.spec.models.wide import Ngrams, WidePath
from qkv.system.errors import UserError

_WORD = re.compile(r"\w+|[^\w\s]")


def hashed(feature: str, buckets: int) -> int:
    """Return the bucket of a feature: its CRC-32 modulo ``buckets``, equal on every machine and in every process."""
    return crc32(_bytes(feature)) % buckets


def words_of(text: str) -> list[str]:
    """Return the lower-cased words and single punctuation marks of a text, in order."""
    return _WORD.findall(text.lower())


def character_ngrams(word: str, least: int, most: int) -> Iterator[str]:
    """Yield the n-grams of ``least`` to ``most`` characters of one word with marked borders: "<at" and "at>" in
    "<at>".
    """
    marked = f"<{word}>"
    for size in range(least, most + 1):
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]


class Bag(NamedTuple):
    """Features of one row: ids (F), int64, and the number of occurrences of each id (F), float32."""

    ids: np.ndarray
    counts: np.ndarray


@singledispatch
def bag_of(part: WidePath, texts: Sequence[str]) -> Bag:
    """Compute the features of the texts of one row for the wide path ``part``.

    To add another wide path, register a function with ``bag_of.register``.
    """
    kind = part.kind
    raise UserError(f"the wide path {kind!r} reads no texts; register a function of its texts with bag_of.register")


@bag_of.register
def ngrams_of(part: Ngrams, texts: Sequence[str]) -> Bag:
    """Compute the hashed n-grams of a text, or of several texts of one row.

    Ids of word n-grams are below ``part.buckets``; ids of character n-grams follow. Features of further texts are
    hashed together with the index of the text. Words that occur in all texts are added as further features.
    """
    read = [words_of(text) for text in texts]
    grams: list[np.ndarray] = []
    for mark, words in enumerate(read):
        grams += _word_ngrams(words, mark, part)
        grams += [_character_ids(word, mark, part.least, part.characters, part.buckets) for word in words]
    if len(read) > 1 and part.words:
        shared = set(read[0]).intersection(*read[1:])
        grams += _word_ngrams(sorted(shared), len(read), part)[:1]
    ids, counts = np.unique(np.concatenate([_NONE, *grams]), return_counts=True)
    return Bag(ids, counts.astype(np.float32))


_NONE = np.zeros(0, np.int64)
_FACTOR = np.uint64(0x9E3779B1)
_MARK = 0x85EBCA6B


def _word_ngrams(words: Sequence[str], mark: int, part: Ngrams) -> list[np.ndarray]:
    """Hash the n-grams of 1 to ``part.words`` adjacent words to ids; h(w_1 … w_n) = h(w_1 … w_{n-1}) · factor +
    h(w_n).
    """
    hashes_of_words = np.array([crc32(_bytes(word)) for word in words], np.uint64)
    hashes, grams = np.full(len(words) + 1, mark * _MARK, np.uint64), []
    for size in range(1, min(part.words, len(words)) + 1):
        hashes = hashes[:-1] * _FACTOR + hashes_of_words[size - 1 :]
        grams.append(((hashes ^ (hashes >> np.uint64(32))) % np.uint64(part.buckets)).astype(np.int64))
    return grams


@lru_cache(maxsize=1 << 18)
def _character_ids(word: str, mark: int, least: int, most: int, buckets: int) -> np.ndarray:
    prefix = chr(mark) if mark else ""
    ngrams = character_ngrams(word, least, most)
    return np.array([buckets + hashed(prefix + ngram, buckets) for ngram in ngrams], np.int64)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
