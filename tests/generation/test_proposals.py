"""Proposals: by looking up n-grams, against a search through the text; by a draft, against its own generation."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.generation.models import VOCABULARY, model
from tests.generation.reads import shapes_read

from qkv.generation.decode.proposals import Draft, LookUp, Wanted
from qkv.generation.decode.sample import generate
from qkv.spec.generation import Generation


def searched(text: list[int], ngram: int, count: int) -> list[int]:
    """What followed the latest occurrence of the longest end of ``text``; a text that ends there is repeated."""
    for n in range(min(ngram, len(text)), 0, -1):
        for first in range(len(text) - n - 1, -1, -1):
            if text[first : first + n] == text[-n:]:
                longer = list(text)
                while len(longer) < len(text) + count:
                    longer.append(longer[first + n + len(longer) - len(text)])
                return longer[len(text) :]
    return []


def wanted(
    texts: Mapping[int, list[int]], counts: Mapping[int, int], generation: Generation | None = None
) -> dict[int, Wanted]:
    """Rows with these texts, of which so many tokens are wanted."""
    return {key: Wanted(text, counts.get(key, 0), generation or Generation(), key) for key, text in texts.items()}


TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=25)


@given(TEXTS, st.lists(TEXTS, max_size=5), st.integers(1, 4), st.integers(1, 9))
def test_the_latest_occurrence_of_the_longest_ngram_is_continued(
    text: list[int], pieces: list[list[int]], ngram: int, count: int
) -> None:
    """Also of a text that has grown by several tokens since, beside another row, which leaves and returns."""
    look_up, other = LookUp(ngram), [0, 1, 0, 1]
    for place, piece in enumerate([[], *pieces]):
        text += piece
        rows = {7: text, 8: other} if place != 1 else {7: text}
        found = look_up.propose(wanted(rows, dict.fromkeys(rows, count)))
        assert (found[7].tokens if 7 in found else []) == searched(text, ngram, count)
        if 8 in rows:
            assert found[8].tokens == searched(other, ngram, count)
        assert all(proposal.chances is None for proposal in found.values())


def test_a_row_that_wants_none_gets_none_and_is_remembered() -> None:
    look_up = LookUp(2)
    text = [1, 2, 3, 1]
    assert look_up.propose(wanted({0: text, 1: [5]}, {1: 3})) == {}
    text += [2]
    assert look_up.propose(wanted({0: text, 1: [5]}, {0: 3}))[0].tokens == [3, 1, 2]


def test_places_of_other_inputs_are_not_proposed() -> None:
    """An id below 0 is a place of a picture; a draft reads no pictures."""
    text = [1, 2, -1, -1, 3, 1]
    assert LookUp(2).propose(wanted({0: text}, {0: 3}))[0].tokens == [2]
    assert LookUp(2).propose(wanted({0: [-1, 1, -1, 1]}, {0: 3})) == {}
    assert Draft(model("rope")).propose(wanted({0: text}, {0: 3})) == {}


@pytest.mark.parametrize("length", [6, 64])
@pytest.mark.parametrize("name", ["rope", "window", "gru", "learned", "all"])
def test_a_draft_proposes_what_it_would_generate_itself(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After texts that took over some of its proposals, also where its context slides meanwhile and then not."""
    m = copy.deepcopy(model(name, context_length=length)).double()
    greedy = Generation(temperature=0, repetition_penalty=1.3)
    draft, drawn = Draft(m), random.Random(2)
    texts = {0: [3, 1], 1: [4, 4, 2, 9], 5: [7]}
    for turn in range(7):
        if turn == 4:
            del texts[1]
            texts[2] = [8] * 3
        counts = {key: 3 + key % 2 for key in texts if key != 5 or turn % 2}
        found = draft.propose(wanted(texts, counts, greedy))
        for key, text in texts.items():
            if key in found:
                own = generate(m, [text], greedy.changed(max_new_tokens=3 + key % 2))[0]
                assert found[key].tokens == own, f"row {key}, turn {turn}"
            text += [*(found[key].tokens[: drawn.randrange(4)] if key in found else []), drawn.randrange(VOCABULARY)]


@pytest.mark.parametrize("name", ["rope", "gru"])
def test_a_draft_reads_only_what_is_new(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = copy.deepcopy(model(name))
    draft, text, read = Draft(m), [3, 1, 4, 1, 5, 9, 2, 6], shapes_read(m, monkeypatch)
    for _ in range(2):
        (proposal,) = draft.propose(wanted({0: text}, {0: 4}, Generation(temperature=0))).values()
        text += [proposal.tokens[0], (proposal.tokens[1] + 1) % VOCABULARY]
    assert [count for _, count in read] == [8, 1, 1, 1, {"rope": 1, "gru": 2}[name], 1, 1, 1]
