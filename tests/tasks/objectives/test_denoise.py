"""BART's noises, each against the sentence of the paper that says what it is."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed

from qkv.system.errors import UserError
from qkv.tasks.objectives.denoise import (
    DocumentRotation,
    Noise,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
    count,
    denoise,
)

MASK, STOP = 1, 2
NOISES: tuple[Noise, ...] = (
    TokenMasking(MASK, 0.3),
    TokenDeletion(0.3),
    TextInfilling(MASK, 0.3),
    SentencePermutation({STOP}),
    DocumentRotation(),
)


def text(length: int) -> np.ndarray:
    """Ids that all differ, so that each is found again."""
    return np.arange(100, 100 + length)


def damaged(ids: np.ndarray, *noises: Noise, seed: int = 0) -> list[int]:
    return denoise(ids, np.random.default_rng(seed), noises).tolist()


def is_part_in_order(part: list[int], whole: list[int]) -> bool:
    """All of ``part`` stands in ``whole`` in the same order."""
    left = iter(whole)
    return all(token in left for token in part)


@pytest.mark.parametrize(
    ("length", "rate", "tokens"),
    [(0, 1.0, 0), (10, 0.0, 0), (10, 0.3, 3), (100, 0.07, 7), (10, 0.31, 4), (1, 0.01, 1), (7, 1.0, 7)],
)
def test_a_share_is_rounded_up(length: int, rate: float, tokens: int) -> None:
    assert count(length, rate) == tokens


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 999))
def test_masking_hides_a_share_in_place(length: int, rate: float, seed: int) -> None:
    ids = text(length).tolist()
    found = damaged(text(length), TokenMasking(MASK, rate), seed=seed)
    assert found.count(MASK) == count(length, rate)
    assert all(token in (MASK, was) for token, was in zip(found, ids, strict=True))


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 999))
def test_deletion_leaves_the_others_in_order(length: int, rate: float, seed: int) -> None:
    found = damaged(text(length), TokenDeletion(rate), seed=seed)
    assert len(found) == length - count(length, rate)
    assert is_part_in_order(found, text(length).tolist())


@pytest.mark.parametrize("noise", [TokenMasking(MASK, 0.5), TokenDeletion(0.5)])
def test_each_set_of_tokens_is_as_likely_as_any_other(noise: Noise) -> None:
    found = Counter(tuple(damaged(text(4), noise, seed=seed)) for seed in range(3000))
    assert len(found) == math.comb(4, 2)
    assert_distributed(list(found.values()), [1] * 6)


@given(st.integers(0, 60), st.floats(0, 1), st.floats(1, 6), st.integers(0, 999))
def test_infilling_takes_out_the_spans_and_puts_one_mask_for_each(
    length: int, rate: float, mean_length: float, seed: int
) -> None:
    noise = TextInfilling(MASK, rate, mean_length)
    lengths = noise.lengths(length, np.random.default_rng(seed))
    found = damaged(text(length), noise, seed=seed)
    assert lengths.sum() == count(length, rate)
    assert found.count(MASK) == len(lengths)
    kept = [token for token in found if token != MASK]
    assert len(kept) == length - count(length, rate)
    assert is_part_in_order(kept, text(length).tolist())


def fill_in_a_loop(ids: list[int], lengths: list[int], places: list[int]) -> list[int]:
    """Write token by token; where a mask stands, skip as many tokens as its span has."""
    found, at = [], 0
    spans = dict(zip(places, lengths, strict=True))
    while at < len(ids) or len(found) in spans:
        if len(found) in spans:
            at += spans[len(found)]
            found.append(MASK)
        else:
            found.append(ids[at])
            at += 1
    return found


@given(st.integers(0, 40), st.lists(st.integers(0, 5), max_size=6), st.integers(0, 999))
def test_spans_are_filled_as_in_a_loop(kept: int, lengths: list[int], seed: int) -> None:
    ids = text(kept + sum(lengths))
    places = np.sort(np.random.default_rng(seed).choice(kept + len(lengths), len(lengths), replace=False))
    found = TextInfilling(MASK).fill(ids, np.array(lengths, int), places)
    assert found.tolist() == fill_in_a_loop(ids.tolist(), lengths, places.tolist())


def test_a_span_of_no_token_inserts_a_mask() -> None:
    found = TextInfilling(MASK).fill(text(4), np.array([0, 2, 0]), np.array([0, 2, 4]))
    assert found.tolist() == [MASK, 100, MASK, 103, MASK]


def test_lengths_are_poisson() -> None:
    """Of long texts, where hardly any span is the one that is cut to fit."""
    noise, generator = TextInfilling(MASK, 0.3, 3.0), np.random.default_rng(0)
    lengths = np.concatenate([noise.lengths(50_000, generator) for _ in range(4)])
    chances = [math.exp(-3) * 3**k / math.factorial(k) for k in range(9)]
    found = np.bincount(np.minimum(lengths, 9), minlength=10)
    assert_distributed(found, [*chances, 1 - sum(chances)])


def test_every_way_to_lay_out_the_spans_is_as_likely() -> None:
    class Given(TextInfilling):
        def lengths(self, length: int, rng: np.random.Generator) -> np.ndarray:
            return np.array([2, 0])

    found = Counter(tuple(damaged(text(5), Given(MASK), seed=seed)) for seed in range(3000))
    assert len(found) == math.comb(5, 2)
    assert_distributed(list(found.values()), [1] * 10)


def test_the_span_that_is_cut_to_fit_stands_anywhere() -> None:
    noise = TextInfilling(MASK, 1.0, 6.0)
    lengths = [noise.lengths(9, np.random.default_rng(seed)) for seed in range(2000)]
    two = np.array([pair for pair in lengths if len(pair) == 2])
    assert_distributed([(two[:, 0] < two[:, 1]).sum(), (two[:, 0] > two[:, 1]).sum()], [1, 1])


def test_sentences_go_up_to_their_full_stops() -> None:
    ids = np.array([9, 8, STOP, 7, STOP, STOP, 6, 5])
    assert [s.tolist() for s in SentencePermutation([STOP]).sentences(ids)] == [[9, 8, STOP], [7, STOP, STOP], [6, 5]]
    both = SentencePermutation([STOP, 6]).sentences(ids)
    assert [s.tolist() for s in both] == [[9, 8, STOP], [7, STOP, STOP, 6], [5]]
    assert [s.tolist() for s in SentencePermutation([]).sentences(ids)] == [ids.tolist()]


def test_every_order_of_the_sentences_is_as_likely() -> None:
    sentences = [[9, STOP], [8, 7, STOP], [6]]
    found = Counter(
        tuple(damaged(np.concatenate(sentences), SentencePermutation([STOP]), seed=seed)) for seed in range(3000)
    )
    expected = {tuple(np.concatenate(order).tolist()) for order in permutations(sentences)}
    assert set(found) == expected
    assert_distributed(list(found.values()), [1] * 6)


def test_rotation_begins_at_any_token() -> None:
    found = Counter(tuple(damaged(text(5), DocumentRotation(), seed=seed)) for seed in range(2000))
    assert set(found) == {tuple([*range(100 + k, 105), *range(100, 100 + k)]) for k in range(5)}
    assert_distributed(list(found.values()), [1] * 5)


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_texts(noise: Noise, length: int) -> None:
    ids = text(length)
    found = damaged(ids, noise)
    assert len(found) <= length + 1
    assert {*found} <= {*ids.tolist(), MASK}
    assert ids.tolist() == text(length).tolist()


@pytest.mark.parametrize("length", [0, 1, 2, 30])
def test_rates_of_zero_and_one(length: int) -> None:
    ids = text(length)
    for noise in (TokenMasking(MASK, 0.0), TokenDeletion(0.0), TextInfilling(MASK, 0.0)):
        assert damaged(ids, noise) == ids.tolist()
    assert damaged(ids, TokenMasking(MASK, 1.0)) == [MASK] * length
    assert damaged(ids, TokenDeletion(1.0)) == []
    assert {*damaged(ids, TextInfilling(MASK, 1.0))} == ({MASK} if length else set())


def test_texts_of_full_stops_alone_are_one_sentence() -> None:
    ids = np.full(6, STOP)
    assert damaged(ids, *NOISES[3:]) == ids.tolist()
    assert len(SentencePermutation([STOP]).sentences(ids)) == 1


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_a_noise_leaves_its_text_alone_and_follows_the_generator(noise: Noise) -> None:
    ids = text(60)
    ids[4::5] = STOP
    before = ids.tolist()
    runs = [damaged(ids, noise, seed=seed) for seed in (1, 1, 2)]
    assert noise(ids, np.random.default_rng(1)).dtype == np.int64
    assert ids.tolist() == before
    assert runs[0] == runs[1] != runs[2]


def test_noises_act_in_turn_on_one_generator() -> None:
    ids = text(40)
    ids[9::10] = STOP
    generator = np.random.default_rng(7)
    by_hand = NOISES[2](NOISES[3](ids, generator), generator)
    assert damaged(ids, NOISES[3], NOISES[2], seed=7) == by_hand.tolist()
    nothing = denoise(ids, generator, ())
    nothing[:] = 0
    assert ids.all()


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match="rate is 2"):
        TokenMasking(MASK, 2)
    with pytest.raises(UserError, match="rate is -1"):
        TokenDeletion(-1)
    with pytest.raises(UserError, match="mean_length is 0"):
        TextInfilling(MASK, 0.3, 0)
    with pytest.raises(UserError, match="one-dimensional"):
        denoise(text(4)[None], np.random.default_rng(0), NOISES)
