"""Baselines that stand beside a model's figures."""

from __future__ import annotations

import pytest

from qkv.tasks import baselines
from qkv.tasks.baselines import ngram_accuracy, ngram_rmse, predicted_labels, predicted_values


def test_words_that_tell_labels_apart_are_found() -> None:
    texts = ["a good film", "good , good", "a bad film", "very bad"] * 5
    labels = ["up", "up", "down", "down"] * 5
    assert predicted_labels(texts, labels, ["good", "bad story", "GOOD"]) == ["up", "down", "up"]
    unseen, truth = ["good", "bad", "bad", "bad"], ["up", "down", "up", "up"]
    assert ngram_accuracy(texts, labels, unseen, truth) == pytest.approx(50)


def test_characters_tell_words_of_one_stem_apart() -> None:
    texts, labels = ["walking talking", "singing", "walked", "talked"] * 5, ["now", "now", "then", "then"] * 5
    assert predicted_labels(texts, labels, ["jumping", "jumped"]) == ["now", "then"]


def test_numbers_follow_from_words() -> None:
    texts, values = ["one good", "two good", "one bad", "two bad"] * 20, [3.0, 3.0, 1.0, 1.0] * 20
    assert predicted_values(texts, values, ["good", "bad"]) == pytest.approx([3, 1], abs=0.5)
    assert ngram_rmse(texts, values, ["two good", "two bad"], [3.0, 1.0]) == pytest.approx(0, abs=0.1)


def test_large_data_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_CHARACTERS", 1)
    assert ngram_accuracy(["a", "b"], ["x", "y"], ["a"], ["x"]) is None
    assert ngram_rmse(["a", "b"], [1.0, 2.0], ["a"], [1.0]) is None


def test_texts_without_words_have_no_baseline() -> None:
    assert ngram_accuracy(["", " "], ["x", "y"], ["a"], ["x"]) is None
