"""T5 span corruption: counts and lengths as published, every token exactly once, spans uniform."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed

from qkv.system.errors import UserError
from qkv.tasks.objectives.spans import corrupt_spans, counts, cut, input_length_for, lengths_of, noise_mask, segments

END, FIRST_SENTINEL = 1, 1000
SENTINELS = range(FIRST_SENTINEL, FIRST_SENTINEL - 1000, -1)

texts = st.tuples(st.integers(0, 300), st.floats(0, 1), st.floats(1, 12), st.integers(0, 999))


def corrupted(
    length: int, density: float = 0.15, mean_length: float = 3.0, seed: int = 0
) -> tuple[np.ndarray, list[int], list[int]]:
    """The text, whose ids are above those of the sentinels, its inputs and its targets."""
    ids = np.random.default_rng(seed).integers(2000, 2100, length)
    inputs, targets = corrupt_spans(ids, np.random.default_rng(seed), SENTINELS, END, density, mean_length)
    assert inputs.dtype == targets.dtype == np.int64
    return ids, inputs.tolist(), targets.tolist()


def pieces(side: list[int]) -> tuple[list[list[int]], list[int]]:
    """What stands between the sentinels, and these."""
    found: list[list[int]] = [[]]
    marks = []
    for token in side[:-1]:
        if token <= FIRST_SENTINEL:
            marks.append(token)
            found.append([])
        else:
            found[-1].append(token)
    return found, marks


@given(texts)
def test_joined_back_they_are_the_text(text: tuple[int, float, float, int]) -> None:
    ids, inputs, targets = corrupted(*text)
    assert inputs[-1] == targets[-1] == END
    kept, marks = pieces(inputs)
    (before, *noise), same_marks = pieces(targets)
    assert before == []
    assert marks == same_marks == list(SENTINELS[: len(marks)])
    joined = [token for a, b in zip(kept, [*noise, []], strict=True) for token in a + b]
    assert joined == ids.tolist()
    assert all(noise)
    assert all(kept[:-1])
    assert not marks or kept[-1] == []


@given(texts)
def test_lengths_are_known_beforehand(text: tuple[int, float, float, int]) -> None:
    length, density, mean_length, _ = text
    _, inputs, targets = corrupted(*text)
    noise, spans = counts(length, density, mean_length)
    assert (len(inputs), len(targets)) == lengths_of(length, density, mean_length)
    assert sum(token <= FIRST_SENTINEL for token in inputs[:-1]) == spans
    assert len(targets) - 1 - spans == noise


def published_counts(length: int, density: float, mean_length: float) -> tuple[int, int]:
    """random_spans_noise_mask of the T5 paper's code: 1 or more noise tokens, 1 or more others, 1 or more spans."""
    noise = int(np.round(max(length, 2) * density))
    noise = min(max(noise, 1), max(length, 2) - 1)
    return noise, max(int(np.round(noise / mean_length)), 1)


def published_lengths(inputs: int, density: float, mean_length: float) -> tuple[int, int]:
    """Tokens of text and length of targets by random_spans_helper of the T5 paper's code.

    Its case of a density of 0.5 is left out.
    """

    def both(tokens: int) -> tuple[int, int]:
        noise = round(tokens * density)
        spans = round(noise / mean_length)
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = inputs
    while both(tokens + 1)[0] <= inputs:
        tokens += 1
    return tokens, both(tokens)[1]


@pytest.mark.parametrize("density", [0.1, 0.15, 0.3, 0.5])
@pytest.mark.parametrize("mean_length", [1.0, 2.5, 3.0, 10.0])
def test_counts_are_the_published_ones(density: float, mean_length: float) -> None:
    for length in range(2, 700):
        noise, spans = published_counts(length, density, mean_length)
        assert counts(length, density, mean_length) == (noise, min(spans, length - noise))
        assert spans <= length - noise or density == 0.5  # an odd length, half of it rounded up to spans of one token


@pytest.mark.parametrize("density", [0.1, 0.15, 0.3, 0.45])
@pytest.mark.parametrize("mean_length", [2.0, 2.5, 3.0])
def test_texts_that_fill_the_inputs_are_as_long_as_published(density: float, mean_length: float) -> None:
    """Texts for spans longer than one token.

    For spans of one token inputs are longer than texts, and the published search, which begins at their length, does
    not fit.
    """
    for wanted in range(40, 700):
        tokens, targets = published_lengths(wanted, density, mean_length)
        assert input_length_for(wanted, density, mean_length) == tokens
        assert lengths_of(tokens, density, mean_length)[1] == targets


def test_the_lengths_of_t5_itself() -> None:
    assert input_length_for(512) == 568
    assert lengths_of(568) == (512, 114)


@given(st.integers(1, 400), st.floats(0, 0.95), st.floats(1, 12))
def test_one_token_more_would_not_fit(wanted: int, density: float, mean_length: float) -> None:
    tokens = input_length_for(wanted, density, mean_length)
    assert lengths_of(tokens, density, mean_length)[0] <= wanted
    assert all(lengths_of(tokens + more, density, mean_length)[0] > wanted for more in range(1, 30))


@pytest.mark.parametrize("seed", range(3))
def test_the_example_of_the_module(seed: int) -> None:
    ids = np.arange(10) + 2000
    noise = np.isin(ids - 2000, [2, 3, 8])
    inputs, targets = cut(ids, noise, [7, 8, 9], END)
    assert inputs.tolist() == [2000, 2001, 7, 2004, 2005, 2006, 2007, 8, 2009, END]
    assert targets.tolist() == [7, 2002, 2003, 8, 2008, END]
    assert corrupted(10, seed=seed)[1].count(FIRST_SENTINEL) == 1


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_short_texts_and_the_ends_of_the_density(density: float) -> None:
    assert corrupted(0, density)[1:] == ([END], [END])
    ids, inputs, targets = corrupted(1, density)
    assert (inputs, targets) == ([ids[0], END], [END])
    ids, inputs, targets = corrupted(2, density)
    assert (inputs, targets) == ([ids[0], FIRST_SENTINEL, END], [FIRST_SENTINEL, ids[1], END])
    assert counts(20, density) == ((1, 1) if density == 0 else (19, 1))


def test_noise_is_spread_as_by_the_definition() -> None:
    """Against a loop that marks where segments begin by shuffling, as the published code does."""

    def by_shuffling(items: int, parts: int, generator: np.random.Generator) -> tuple[int, ...]:
        begins = [1] * (parts - 1) + [0] * (items - parts)
        generator.shuffle(begins)
        lengths = [1]
        for new in begins:
            if new:
                lengths.append(1)
            else:
                lengths[-1] += 1
        return tuple(lengths)

    generator = np.random.default_rng(0)
    ways = [tuple(np.diff([0, *borders, 7]).tolist()) for borders in combinations(range(1, 7), 2)]
    for form in (segments, by_shuffling):
        found = Counter(tuple(np.asarray(form(7, 3, generator)).tolist()) for _ in range(6000))
        assert set(found) == set(ways)
        assert_distributed([found[way] for way in ways], [1] * len(ways))


def test_masks_are_uniform_among_all_that_the_definition_allows() -> None:
    generator = np.random.default_rng(1)
    found = Counter(tuple(noise_mask(9, generator, 0.45, 2.0).tolist()) for _ in range(8000))
    noise, spans = counts(9, 0.45, 2.0)
    assert (noise, spans) == (4, 2)
    assert len(found) == 3 * 4  # ways to cut 4 tokens in two, times ways to cut 5 tokens in two
    assert_distributed(list(found.values()), [1] * 12)
    assert all(sum(mask) == 4 and not mask[0] and mask[-1] for mask in found)


def test_the_text_is_left_alone_and_the_generator_decides() -> None:
    ids = np.arange(2000, 2100)
    runs = [corrupt_spans(ids, np.random.default_rng(seed), SENTINELS, END)[0].tolist() for seed in (3, 3, 4)]
    assert ids.tolist() == list(range(2000, 2100))
    assert runs[0] == runs[1] != runs[2]


def test_what_cannot_be() -> None:
    generator = np.random.default_rng(0)
    ids = np.arange(100)
    with pytest.raises(UserError, match=r"100 tokens has 5 spans, but there are 4 sentinels"):
        corrupt_spans(ids, generator, range(4), END)
    with pytest.raises(UserError, match=r"density is 1\.2"):
        corrupt_spans(ids, generator, SENTINELS, END, density=1.2)
    with pytest.raises(UserError, match=r"mean_length is 0\.5"):
        corrupt_spans(ids, generator, SENTINELS, END, mean_length=0.5)
    with pytest.raises(UserError, match="one-dimensional"):
        corrupt_spans(ids[None], generator, SENTINELS, END)
    with pytest.raises(UserError, match="below 1"):
        input_length_for(512, density=1.0)
    with pytest.raises(UserError, match="target_length is 0"):
        input_length_for(0)
