"""Features of words, by name and hashed."""

from __future__ import annotations

import pytest

from qkv.data.features.word_features import PADDING, hashed_words, shape, strings
from qkv.spec.errors import SpecError
from qkv.spec.processors import Processor, WordFeatures

SENTENCE = ["At", "McDonald's", "in", "B-12", "ÉTÉ", "in"]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("Smith-42", "Xxxxx-dd"),
        ("iPhone", "xXxxxx"),
        ("internationally", "xxxx"),
        ("@U_N", "@X_X"),
        ("2026", "dddd"),
        ("東京タワー", "xxxx"),
        ("......", "...."),
    ],
)
def test_shapes(word: str, wanted: str) -> None:
    assert shape(word) == wanted


def test_features_are_the_word_its_affixes_ngrams_shapes_and_neighbours() -> None:
    part = WordFeatures(affixes=2, shortest=3, longest=4, neighbours=1)
    words = {"word uk", "prefix u", "suffix k", "prefix uk", "suffix uk"}
    ngrams = {f"ngram {ngram}" for ngram in ("<uk", "uk>", "<uk>")}
    beside = {"-1 word in", "-1 shape xx", "1 word \n", "1 shape \n"}
    (_, found) = strings(["in", "UK"], part)
    assert set(found) == {*words, *ngrams, "shape XX", "case X", *beside}
    assert len(found) == len(words | ngrams | beside) + 2
    plain = WordFeatures(affixes=0, shape=False, neighbours=0)
    assert strings(["in", "UK"], plain) == [["word in"], ["word uk"]]


@pytest.mark.parametrize(
    "part", [WordFeatures(buckets=1 << 30), WordFeatures(buckets=1 << 30, longest=5, neighbours=2)]
)
def test_buckets_are_a_dictionary_of_the_features(part: WordFeatures) -> None:
    """Without collisions: equal features have equal buckets, different ones different buckets."""
    found, named = hashed_words(part)(SENTENCE), strings(SENTENCE, part)
    pairs = {
        (feature, int(bucket))
        for row, features in zip(found, named, strict=True)
        for bucket, feature in zip(row[row != PADDING], features, strict=True)
    }
    assert len(pairs) == len({feature for feature, _ in pairs}) == len({bucket for _, bucket in pairs})
    assert (found[[len(features) for features in named].index(found.shape[1])] != PADDING).all()
    assert found.max() < part.buckets


def test_few_buckets_are_shared() -> None:
    assert set(hashed_words(WordFeatures(buckets=3))(SENTENCE).flatten().tolist()) == {PADDING, 0, 1, 2}


def test_settings_are_read_back_and_checked() -> None:
    part = WordFeatures(longest=4, neighbours=2)
    assert Processor.parse(part.to_dict()) == part
    with pytest.raises(SpecError, match="longest: 2 characters are fewer than the 3 of the shortest n-grams; give at"):
        WordFeatures.parse({"longest": 2})
