"""Figures of labels against scikit-learn's."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from qkv.report.evaluation import evaluation_report
from qkv.tasks.metrics.label_metrics import MOST_CLASSES, agreement, confusion, counts

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


def test_of_many_classes_those_with_the_most_mistakes_are_shown() -> None:
    labels = [f"class {i}" for i in range(2000)]
    wrong = [(1500 + i % 50, 7) for i in range(500)] + [(9, 1999)] * 30
    given_pairs = [(i, i) for i in range(2000)] + wrong
    section = confusion(labels, given_pairs)
    assert section["labels"][-1] == "all others"
    table = section["counts"]
    assert len(table) == len(section["labels"]) == MOST_CLASSES + 1
    assert sum(map(sum, table)) == len(given_pairs)
    seven, nine, last = (section["labels"].index(f"class {i}") for i in (7, 9, 1999))
    assert (table[seven][seven], table[nine][nine], table[nine][last]) == (1, 1, 30)
    assert sum(row[seven] for row in table) == 501
    assert section["mistakes"][0] == ["class 9", "class 1999", 30]
    assert section["mistakes"][1][1:] == ["class 7", 10]
    page = evaluation_report("many", "", {"test": {"figures": {}, "sections": [section], "notes": []}}, 1)
    assert "class 1999" in page
    # precision of class 7: found once where it is true, of 501 times
    assert "0.1996" in page


def test_figures_of_many_classes_take_memory_by_class() -> None:
    given_pairs = [(i, (i * 7) % 20_000) for i in range(20_000)]
    tracemalloc.start()
    found = agreement(given_pairs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert found["accuracy"] == pytest.approx(100 * sum(a == b for a, b in given_pairs) / 20_000)
