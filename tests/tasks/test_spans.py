"""Windows, spans and their characters against loops; and that perfect logits give back the exact text of the answer."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.tables import Oracle, dataset_of, recipe_for

from qkv.data.vocabulary import Vocabulary
from qkv.spec.recipe import Recipe
from qkv.tasks.example_task import trained
from qkv.tasks.task import Scale, Totals
from qkv.tasks.words.spans import TokenSpan, best_spans, characters_of, span_of, windows
from qkv.tokenizers.tokenizer import Tokenizer

TEXTS = [
    "The old mill, by the river: 1,234 steps from Ötting's café.",
    "A mill — an old one — stood by the café in 1234; 東京 and Paris too!",
]
KINDS = [
    "characters",
    "bytes",
    "words(200)",
    "word_list(200, lowercase=true)",
    "bpe(300)",
    "wordpiece(200)",
    "unigram(300)",
    "code(300)",
]
EVERY_CHARACTER = ["characters", "bytes"]
ACROSS_CHARACTERS = ["bpe(300)", "unigram(300)", "code(300)"]
"""A piece may end inside the bytes of a character that is not ASCII."""


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    recipe = Recipe.parse({"data": {"source": "x", "tokenizer": kind}})
    return trained(recipe.data.tokenizer, TEXTS * 3, ("cls", "sep"))


contexts = st.one_of(
    st.sampled_from(TEXTS),
    st.text(st.sampled_from("aeé t.m,1\n東🙂"), min_size=1, max_size=40),
    st.lists(
        st.sampled_from(["The", "old", "mill", ",", "river", "café's", "1,234", "—", "東京"]), min_size=1, max_size=12
    ).map(" ".join),
).filter(lambda text: bool(text.strip()))


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 30))
def test_windows_cover_everything_in_steps_of_the_stride(length: int, room: int, stride: int) -> None:
    found = windows(length, room, stride)
    assert {i for begin, end in found for i in range(begin, end)} == set(range(length))
    assert all(end - begin <= room for begin, end in found)
    assert [begin for begin, _ in found] == [i * min(stride, room) for i in range(len(found))]
    assert all(end < length for _, end in found[:-1])


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.integers(0, 59), st.integers(1, 20))
def test_an_answer_as_long_as_two_windows_share_lies_whole_in_one(
    length: int, room: int, stride: int, first: int, size: int
) -> None:
    size = min(size, room - min(stride, room) + 1, length)
    first = min(first, length - size)
    assert any(begin <= first and first + size <= end for begin, end in windows(length, room, stride))


@pytest.mark.parametrize("kind", KINDS)
@given(context=contexts, ends=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_a_span_holds_its_characters_and_no_token_too_many(kind: str, context: str, ends: tuple[int, int]) -> None:
    _, offsets = tokenizer_of(kind).encode_offsets(context)
    begin, end = sorted(min(place, len(context)) for place in ends)
    span = span_of(begin, end, offsets)
    held = [i for i, (b, e) in enumerate(offsets) if set(range(b, e)) & set(range(begin, end))]
    assert span == (TokenSpan(min(held), max(held)) if held else None)


@pytest.mark.parametrize("kind", EVERY_CHARACTER)
@given(context=contexts, ends=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_of_single_characters_every_text_comes_back(kind: str, context: str, ends: tuple[int, int]) -> None:
    _, offsets = tokenizer_of(kind).encode_offsets(context)
    begin, end = sorted(min(place, len(context)) for place in ends)
    span = span_of(begin, end, offsets)
    if begin == end:
        assert span is None
    else:
        assert span is not None
        assert context[slice(*characters_of(span, context, offsets))] == context[begin:end].strip()


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_the_best_span_is_that_of_three_loops(rows: int, length: int, longest: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(rows, length, 2)
    begin = torch.randint(0, length + 1, (rows,))
    end = begin + torch.randint(0, length + 1, (rows,)).clamp(max=length - begin)
    found = best_spans(logits, begin, end, longest)
    for row in range(rows):
        places = range(int(begin[row]), int(end[row]))
        pairs = [(i, j) for i, j in itertools.product(places, places) if i <= j < i + longest]
        scores = {pair: float(logits[row, pair[0], 0] + logits[row, pair[1], 1]) for pair in pairs}
        assert float(found.score[row]) == pytest.approx(max(scores.values(), default=-math.inf))
        if scores:
            assert (int(found.first[row]), int(found.last[row])) == max(scores, key=lambda pair: scores[pair])
            assert float(found.total[row]) == pytest.approx(math.log(sum(map(math.exp, scores.values()))), abs=1e-5)
        assert float(found.none[row]) == pytest.approx(float(logits[row, 0].sum()))


def read_by_an_oracle(kind: str, context: str, answer: dict[str, object], stride: int, length: int = 30) -> str:
    """What the task answers where each window's logits point at its target."""
    task_spec = f"question_answering(stride={stride}, max_question_tokens=8, max_answer_tokens=200)"
    recipe = recipe_for(task_spec, context_length=length)
    tokenizer = tokenizer_of(kind)
    rows = [{"context": context, "question": "old mill?", "answers": [answer]}]
    task, dataset = dataset_of(recipe, rows, vocabulary=Vocabulary(tokenizer, tokenizer))
    oracle, seen = Oracle(), Totals()
    for batch in dataset.rows("validation"):
        oracle.says = (
            9 * torch.nn.functional.one_hot(batch.targets, batch.input.values.shape[1]).transpose(1, 2).float()
        )
        seen.add(task.observe(oracle, batch))
    evaluation = task.evaluate(oracle, dataset, "validation", seen, dataset.recipe)
    assert task.figures(seen, Scale(1, 1))["window_accuracy"] == 100
    return evaluation.sections[0]["rows"][0][1]


@pytest.mark.parametrize("kind", KINDS)
@given(context=contexts, ends=st.tuples(st.integers(0, 40), st.integers(0, 7)), stride=st.integers(1, 12))
def test_perfect_logits_give_back_the_exact_answer(kind: str, context: str, ends: tuple[int, int], stride: int) -> None:
    # An answer that begins and ends where tokens do (any place for characters and bytes), as long as two windows share.
    _, offsets = tokenizer_of(kind).encode_offsets(context)
    first = min(ends[0], len(offsets) - 1)
    room = 30 - len(tokenizer_of(kind).encode("old mill?")[:8]) - 3
    last = min(first + min(ends[1], room - min(stride, room)), len(offsets) - 1)
    begin, end = characters_of(TokenSpan(first, last), context, offsets)
    if begin == end:  # white space alone
        return
    span = span_of(begin, end, offsets)
    assert span is not None
    if span.last - span.first > room - min(stride, room):  # the pieces of one character at either side
        return
    text = context[begin:end]
    found = read_by_an_oracle(kind, context, {"text": text, "start": begin}, stride)
    assert found == text or (text in found and kind in ACROSS_CHARACTERS and not context.isascii())


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_of_a_long_context_is_found_in_its_windows(kind: str) -> None:
    context = " ".join(f"{word}{i}" for i, word in enumerate(["river", "café", "Paris"] * 12))
    for word in context.split()[::5]:
        found = read_by_an_oracle(kind, context, {"text": word, "start": context.index(word)}, 6, 40)
        assert word in found
        assert len(found.split()) == 1 or kind in EVERY_CHARACTER
