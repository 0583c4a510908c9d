"""Figures of texts: those of the libraries that define them, and of BLEU's definition in loops."""

from __future__ import annotations

import math
import sys
from collections import Counter

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from qkv.system.errors import UserError
from qkv.tasks.metrics.text_metrics import bleu, first_sentence, metric_library, rouge

words = st.lists(st.sampled_from(["a", "cat", "Cat", "sat", "on", "mat", ",", "."]), min_size=1, max_size=12).map(
    " ".join
)
corpora = st.lists(st.tuples(words, words), min_size=1, max_size=4)


def bleu_by_hand(pairs: list[tuple[list[str], list[str]]]) -> float:
    """exp(min(0, 1 - r / c)) · (p_1 p_2 p_3 p_4)^¼ of Papineni et al. (2002), 0 to 100."""
    logs = 0.0
    for n in range(1, 5):
        hits = total = 0
        for text, reference in pairs:
            mine, theirs = (Counter(tuple(w[i : i + n]) for i in range(len(w) - n + 1)) for w in (text, reference))
            hits += sum(min(count, theirs[gram]) for gram, count in mine.items())
            total += sum(mine.values())
        if not hits:
            return 0.0
        logs += math.log(hits / total) / 4
    c, r = (sum(len(pair[i]) for pair in pairs) for i in (0, 1))
    return 100 * math.exp(min(0.0, 1 - r / c) + logs)


@given(corpora)
def test_bleu_is_that_of_sacrebleu_and_of_its_definition(pairs: list[tuple[str, str]]) -> None:
    written, references = [text for text, _ in pairs], [reference for _, reference in pairs]
    found = bleu(written, references)
    assert found.figures["bleu"] == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score)
    split = [(text.lower().split(), reference.lower().split()) for text, reference in pairs]
    assert found.figures["bleu_tokenized"] == pytest.approx(bleu_by_hand(split), abs=1e-9)
    assert found.notes[0].startswith("BLEU: nrefs:1|case:mixed")


def test_marks_are_words_of_their_own_in_tokenized_bleu() -> None:
    found = bleu(["The cat, sat on it."], ["the cat , sat on it ."])
    assert found.figures["bleu_tokenized"] == pytest.approx(100)
    assert found.figures["bleu"] < 100


@given(st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=1, max_size=3))
def test_rouge_takes_the_best_reference_of_each_text(rows: list[tuple[str, list[str]]]) -> None:
    found = rouge([text for text, _ in rows], [references for _, references in rows]).figures
    for name in ("rouge1", "rouge2", "rougeL"):
        scorer = RougeScorer([name], use_stemmer=True)
        best = [
            max(scorer.score(reference, text)[name].fmeasure for reference in references) for text, references in rows
        ]
        assert found[name] == pytest.approx(100 * sum(best) / len(best))


def test_no_texts_have_no_rouge() -> None:
    assert rouge([], []).figures == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UserError, match=r"computed by sacrebleu, which is not installed; pip install 'qkv\[metrics\]'"):
        metric_library("sacrebleu.metrics")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        (" One! Two", "One!"),
        ("One?\nTwo", "One?"),
        ("v1.5 is out. Get it", "v1.5 is out."),
        ("no mark", "no mark"),
        ("", ""),
    ],
    ids=["stop", "blank before", "line end", "inside a number", "none", "empty"],
)
def test_the_first_sentence(text: str, first: str) -> None:
    assert first_sentence(text) == first
