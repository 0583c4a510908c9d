"""Figures of labels against scikit-learn's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from qkv.tasks.label_metrics import agreement, confusion, counts

pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


@given(pairs)
def test_figures_are_those_of_scikit_learn(given_pairs: list[tuple[int, int]]) -> None:
    true, found = zip(*given_pairs, strict=True)
    figures = agreement(given_pairs)
    assert figures["accuracy"] == pytest.approx(100 * accuracy_score(true, found))
    assert figures["macro_f1"] == pytest.approx(100 * f1_score(true, found, average="macro", zero_division=0))


@given(pairs)
def test_counts_are_those_of_scikit_learn(given_pairs: list[tuple[int, int]]) -> None:
    true, found = zip(*given_pairs, strict=True)
    wanted = confusion_matrix(true, found, labels=range(5)).tolist()
    assert counts(given_pairs, 5).tolist() == wanted
    section = confusion("abcde", given_pairs)
    assert (section["kind"], section["labels"], section["counts"]) == ("confusion", list("abcde"), wanted)


def test_figures_of_nothing_are_no_numbers() -> None:
    assert all(map(math.isnan, agreement([]).values()))
    assert counts([], 2).tolist() == [[0, 0], [0, 0]]
