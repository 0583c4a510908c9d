"""Entities and their scores against seqeval; the most frequent tag against a loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from qkv.tasks.words.entities import MostFrequent, entities, entity_f1, entity_scores, marked, marks_entities

tags = st.lists(st.sampled_from(["O", "O", "B-a", "I-a", "B-b", "I-b", "E-a", "S-b"]), min_size=1, max_size=12)


@given(tags)
def test_entities_are_those_of_seqeval(given_tags: list[str]) -> None:
    assert [tuple(e) for e in entities(given_tags)] == [
        (kind, begin, end + 1) for kind, begin, end in get_entities(given_tags)
    ]


@given(st.lists(st.tuples(tags, tags), min_size=1, max_size=4))
def test_scores_are_those_of_seqeval_and_of_counting_whole_entities(pairs: list[tuple[list[str], list[str]]]) -> None:
    cut = [(a[: min(len(a), len(b))], b[: min(len(a), len(b))]) for a, b in pairs]
    truth, found = [a for a, _ in cut], [b for _, b in cut]
    scores = entity_scores(truth, found).figures
    assert entity_f1(truth, found) == pytest.approx(scores["f1"])
    assert scores["f1"] == pytest.approx(100 * f1_score(truth, found, zero_division=0))
    assert scores["precision"] == pytest.approx(100 * precision_score(truth, found, zero_division=0))
    assert scores["recall"] == pytest.approx(100 * recall_score(truth, found, zero_division=0))
    true = {(i, *e) for i, row in enumerate(truth) for e in entities(row)}
    said = {(i, *e) for i, row in enumerate(found) for e in entities(row)}
    assert scores["f1"] == pytest.approx(200 * len(true & said) / max(1, len(true) + len(said)))


def test_the_table_has_a_row_a_type() -> None:
    evaluation = entity_scores([["B-a", "I-a", "O", "B-b"]], [["B-a", "I-a", "O", "B-a"]])
    (table,) = evaluation.sections
    assert table["columns"] == ["type", "precision", "recall", "F1", "entities"]
    assert table["rows"] == [["a", "50.0", "100.0", "66.7", 1], ["b", "0.0", "0.0", "0.0", 1]]


def test_without_an_entity_there_is_nothing_to_score() -> None:
    evaluation = entity_scores([["O", "O"]], [["O", "O"]])
    assert (evaluation.figures, evaluation.sections) == ({"f1": 0.0, "precision": 0.0, "recall": 0.0}, [])


@pytest.mark.parametrize(
    ("words", "given_tags", "line"),
    [
        ("Barack Obama spoke", ["B-person", "I-person", "O"], "[Barack Obama](person) spoke"),
        ("in Paris Berlin", ["O", "B-place", "B-place"], "in [Paris](place) [Berlin](place)"),
        ("in Paris", ["O", "I-place"], "in [Paris](place)"),
        ("no name", ["O", "O"], "no name"),
        ("the dog", ["DET", "NOUN"], "the/DET dog/NOUN"),
    ],
    ids=["two words", "two entities", "inside alone", "none", "parts of speech"],
)
def test_a_line_for_people(words: str, given_tags: list[str], line: str) -> None:
    assert marked(words.split(), given_tags) == line


def test_what_marks_entities() -> None:
    assert marks_entities(["O", "B-x", "I-x"])
    assert not marks_entities(["NOUN", "VERB"])
    assert not marks_entities(["O", "NOUN"])
    assert not marks_entities(["B-x", "I-x"])


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["O", "B-x", "B-y"])), min_size=1, max_size=5),
        min_size=1,
    )
)
def test_the_most_frequent_tag_of_each_word(sentences: list[list[tuple[str, str]]]) -> None:
    guess = MostFrequent({"words": [w for w, _ in s], "tags": [t for _, t in s]} for s in sentences)
    pairs = [pair for s in sentences for pair in s]
    for word in "abcd":
        own = [t for w, t in pairs if w == word] or [t for _, t in pairs]
        assert guess([word]) == [sorted(set(own), key=lambda tag: (-own.count(tag), tag))[0]]
