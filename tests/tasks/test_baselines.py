"""The baselines that stand beside a model's figures."""

from __future__ import annotations

import pytest

from qkv.tasks import baselines
from qkv.tasks.baselines import bag_of_words, bag_of_words_accuracy


def test_words_that_tell_labels_apart_are_found() -> None:
    texts = ["a good film", "good , good", "a bad film", "very bad"] * 5
    labels = ["up", "up", "down", "down"] * 5
    assert bag_of_words(texts, labels, ["good", "bad story", "GOOD"]) == ["up", "down", "up"]
    assert bag_of_words_accuracy(
        texts, labels, ["good", "bad", "bad", "bad"], ["up", "down", "up", "up"]
    ) == pytest.approx(50)


def test_too_many_texts_have_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_ROWS", 1)
    assert bag_of_words_accuracy(["a", "b"], ["x", "y"], ["a"], ["x"]) is None
