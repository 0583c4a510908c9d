"""SQuAD's figures against their definition in loops, and against answers whose figures are known."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.tasks.metrics.answer_metrics import answer_scores, exact_match, normalised, overlap

texts = st.lists(
    st.sampled_from(["the", "A", "an", "cat", "Cat's", "sat.", "U.S.", "café", "--", "1,000", "theory", "a-b"]),
    max_size=6,
).map(" ".join)


def plain(text: str) -> list[str]:
    kept = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def f1(answer: str, truth: str) -> float:
    a, b = plain(answer), plain(truth)
    if not a or not b:
        return float(a == b)
    left, shared = list(b), 0
    for word in a:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(a), shared / len(b)
    return 2 * precision * recall / (precision + recall)


@given(texts, texts)
def test_both_figures_are_those_of_the_definition(answer: str, truth: str) -> None:
    assert normalised(answer) == " ".join(plain(answer))
    assert exact_match(answer, truth) == float(plain(answer) == plain(truth))
    assert overlap(answer, truth) == pytest.approx(f1(answer, truth))


@given(st.lists(st.tuples(texts, st.lists(texts, max_size=3)), min_size=1, max_size=5))
def test_the_best_truth_counts_and_a_question_without_one_has_the_empty_answer(
    rows: list[tuple[str, list[str]]],
) -> None:
    found = answer_scores([answer for answer, _ in rows], [truths for _, truths in rows])
    wanted = []
    for answer, truths in rows:
        usable = [truth for truth in truths if plain(truth)] or [""]
        wanted.append(
            (max(plain(answer) == plain(truth) for truth in usable), max(f1(answer, truth) for truth in usable))
        )
    assert found["exact_match"] == pytest.approx(100 * sum(exact for exact, _ in wanted) / len(rows))
    assert found["f1"] == pytest.approx(100 * sum(shared for _, shared in wanted) / len(rows))


@pytest.mark.parametrize(
    ("answer", "truths", "exact", "shared"),
    [
        ("the Denver Broncos!", ["Denver Broncos", "Broncos"], 100, 100),
        ("Denver", ["Denver Broncos", "Carolina"], 0, 200 / 3),
        ("", [], 100, 100),
        ("Denver", [], 0, 0),
        ("", ["Denver"], 0, 0),
        ("an", ["the"], 100, 100),
    ],
    ids=["articles and marks", "half", "none and none", "one and none", "none and one", "articles alone"],
)
def test_known_answers(answer: str, truths: list[str], exact: float, shared: float) -> None:
    assert answer_scores([answer], [truths]) == pytest.approx({"exact_match": exact, "f1": shared})


def test_no_questions_give_no_error() -> None:
    assert answer_scores([], []) == {"exact_match": 0, "f1": 0}
