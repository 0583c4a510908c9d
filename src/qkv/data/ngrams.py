"""Hashed n-grams of words and characters: features of a text without a dictionary.

Bag of Tricks for Efficient Text Classification (Joulin et al. 2017); Enriching Word Vectors with Subword Information
(Bojanowski et al. 2017); feature hashing (Weinberger et al. 2009).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from zlib import crc32

_WORD = re.compile(r"\w+|[^\w\s]")


def hashed(feature: str, buckets: int) -> int:
    """Bucket of a feature: its CRC-32 modulo ``buckets``, equal on every machine and in every process."""
    return crc32(feature.encode("utf-8", "surrogatepass")) % buckets


def words_of(text: str) -> list[str]:
    """Lower-cased words and single punctuation marks of a text, in order."""
    return _WORD.findall(text.lower())


def word_ngrams(words: Sequence[str], most: int) -> Iterator[str]:
    """N-grams of 1 to ``most`` adjacent words, joined by spaces."""
    for size in range(1, most + 1):
        for start in range(len(words) - size + 1):
            yield " ".join(words[start : start + size])


def character_ngrams(word: str, least: int, most: int) -> Iterator[str]:
    """N-grams of ``least`` to ``most`` characters within one word with marked borders: "<at" and "at>" in "<at>"."""
    marked = f"<{word}>"
    for size in range(least, most + 1):
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]
