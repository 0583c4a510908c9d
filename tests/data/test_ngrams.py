"""Hashed n-grams against plain dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from qkv.data.features.ngrams import Bag, bag_of, character_ngrams, words_of
from qkv.spec.models.wide import Ngrams

TEXTS = [
    "a red cat sat on a mat , a red mat",
    "Äpfel und Birnen — Äpfel!",
    "",
    "\t \n",
    "x",
    "机器学习很好",
    "MKTAYIAKQR",
    "lone \ud800 surrogate",
]
MANY = 1 << 24


def counted(text: str, words: int, least: int, most: int) -> Counter[tuple[str, ...]]:
    """The n-grams themselves, by plain loops."""
    tokens, found = words_of(text), Counter[tuple[str, ...]]()
    for size in range(1, words + 1):
        found.update(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))
    for token in tokens:
        marked = f"<{token}>"
        for size in range(least, most + 1):
            found.update(("characters", marked[i : i + size]) for i in range(len(marked) - size + 1))
    return found


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("words", "least", "most"), [(2, 3, 5), (3, 1, 2), (1, 1, 0), (0, 2, 4)])
def test_with_plenty_of_buckets_each_ngram_has_one_feature(text: str, words: int, least: int, most: int) -> None:
    bag = bag_of(Ngrams(words=words, least=least, characters=most, buckets=MANY), [text])
    there = counted(text, words, least, most)
    assert sorted(bag.counts.tolist()) == sorted(map(float, there.values()))
    assert len(bag.ids) == len(there)
    assert int((bag.ids < MANY).sum()) == sum(ngram[0] != "characters" or len(ngram) != 2 for ngram in there)


def test_an_ngram_has_the_same_feature_in_every_text() -> None:
    part = Ngrams(buckets=1 << 20)
    one, two = bag_of(part, ["red cat"]), bag_of(part, ["a red cat ran"])
    assert set(one.ids) <= set(two.ids)
    assert set(bag_of(part, ["cat red"]).ids) != set(one.ids)  # the order of words counts


def test_features_are_the_same_in_every_process() -> None:
    part = Ngrams(words=2, least=3, characters=3, buckets=1000)
    assert bag_of(part, ["ab ab"]).ids.tolist() == [80, 885, 1444, 1843]


def test_features_of_the_second_text_are_others_and_shared_words_are_marked() -> None:
    part = Ngrams(words=1, characters=0, buckets=MANY)
    first, pair = bag_of(part, ["red cat"]), bag_of(part, ["red cat", "red dog"])
    swapped = bag_of(part, ["red dog", "red cat"])
    assert len(pair.ids) == 2 + 2 + 1
    assert set(first.ids) < set(pair.ids)
    assert set(pair.ids) != set(swapped.ids)
    assert len(bag_of(part, ["red cat", "blue dog"]).ids) == 4


def test_few_buckets_collide_but_lose_no_count() -> None:
    plenty, few = (bag_of(Ngrams(buckets=size), [TEXTS[0]]) for size in (MANY, 16))
    assert isinstance(few, Bag)
    assert few.counts.sum() == plenty.counts.sum()
    assert few.ids.max() < 32
    assert few.ids.dtype == np.int64


def test_character_ngrams_mark_the_borders_of_a_word() -> None:
    assert list(character_ngrams("cat", 3, 4)) == ["<ca", "cat", "at>", "<cat", "cat>"]
