"""Baselines that stand beside a model's figures."""

from __future__ import annotations

import random

import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from qkv.tasks.baselines import baselines
from qkv.tasks.baselines.baselines import (
    ngram_accuracy,
    ngram_rmse,
    ngrams,
    predicted_labels,
    predicted_values,
)


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


def test_baselines_are_those_of_the_library() -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["good", "bad", "dull", "fine", "plot", "film", "jumping"], k=6)) for _ in range(60)]
    numbers = [text.count("good") - text.count("bad") + draw.random() for text in texts]
    labels = [str(int(number) % 3) for number in numbers]
    features = ngrams()
    x, unseen = features.fit_transform(texts[:40]), features.transform(texts[40:])
    wanted = LogisticRegression(max_iter=1000).fit(x, labels[:40]).predict(unseen).tolist()
    assert predicted_labels(texts[:40], labels[:40], texts[40:]) == wanted
    values = Ridge().fit(x, numbers[:40]).predict(unseen)
    assert predicted_values(texts[:40], numbers[:40], texts[40:]) == pytest.approx(values, abs=1e-3)
