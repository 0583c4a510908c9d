"""Skip-gram and CBOW: windows against loops, subsampling and negative samples against their formulas."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed, assert_share

from qkv.system.errors import UserError
from qkv.tasks.objectives.pairs import (
    NegativeSampler,
    alias_table,
    cbow_contexts,
    keep_probabilities,
    skip_gram_pairs,
    subsample,
)

windows_of_texts = st.tuples(st.integers(0, 40), st.integers(1, 6), st.booleans(), st.integers(0, 999))


def words(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 10, length)


def half(drop: bool) -> np.ndarray | None:
    return np.full(10, 0.5) if drop else None


def windows_in_a_loop(
    ids: np.ndarray, window: int, keep: np.ndarray | None, seed: int
) -> list[tuple[int, list[int], list[int]]]:
    """Each word that is kept, with those of its window before and after it."""
    generator = np.random.default_rng(seed)
    if keep is not None:
        ids = np.array([word for word, u in zip(ids, generator.random(len(ids)), strict=True) if u < keep[word]], int)
    text = ids.tolist()
    reach = generator.integers(1, window + 1, len(text)).tolist()
    return [
        (word, text[max(i - b, 0) : i], text[i + 1 : i + b + 1])
        for i, (word, b) in enumerate(zip(text, reach, strict=True))
    ]


@given(windows_of_texts)
def test_pairs_are_those_of_a_loop(case: tuple[int, int, bool, int]) -> None:
    length, window, drop, seed = case
    ids = words(length, seed)
    before = ids.copy()
    centres, contexts = skip_gram_pairs(ids, window, half(drop), np.random.default_rng(seed))
    expected = [
        (word, near) for word, left, right in windows_in_a_loop(ids, window, half(drop), seed) for near in left + right
    ]
    assert list(zip(centres.tolist(), contexts.tolist(), strict=True)) == expected
    assert centres.dtype == contexts.dtype == np.int64
    assert np.array_equal(ids, before)


@given(windows_of_texts)
def test_contexts_are_those_of_a_loop(case: tuple[int, int, bool, int]) -> None:
    length, window, drop, seed = case
    ids = words(length, seed)
    found = cbow_contexts(ids, window, half(drop), np.random.default_rng(seed))
    expected = [row for row in windows_in_a_loop(ids, window, half(drop), seed) if row[1] or row[2]]
    assert found.contexts.shape == found.present.shape == (len(expected), 2 * window)
    assert found.centres.tolist() == [word for word, _, _ in expected]
    for contexts, present, (_, left, right) in zip(found.contexts, found.present, expected, strict=True):
        assert contexts[:window][present[:window]].tolist() == left
        assert contexts[window:][present[window:]].tolist() == right
        assert not contexts[~present].any()


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_texts_and_texts_of_which_nothing_or_all_is_kept(length: int) -> None:
    ids, generator = words(length) * 0 + 3, np.random.default_rng(0)
    for keep in (None, np.ones(10)):
        assert len(skip_gram_pairs(ids, 5, keep, generator).centres) == (2 if length == 2 else 0)
        assert len(cbow_contexts(ids, 5, keep, generator).centres) == (2 if length == 2 else 0)
    assert len(skip_gram_pairs(ids, 5, np.zeros(10), generator).centres) == 0
    assert cbow_contexts(ids, 5, np.zeros(10), generator).contexts.shape == (0, 10)


def test_near_words_are_paired_more_often() -> None:
    """With b uniform from 1 to w, a word at distance d is in the window with probability (w - d + 1) / w."""
    ids = np.arange(60_000)
    centres, contexts = skip_gram_pairs(ids, 4, None, np.random.default_rng(0))
    distance = np.bincount(abs(centres - contexts), minlength=5)[1:]
    assert_distributed(distance, [4, 3, 2, 1])
    inside = (centres > 10) & (centres < 59_990)
    reach = np.zeros(60_000, int)
    np.maximum.at(reach, centres[inside], abs(centres - contexts)[inside])
    assert_distributed(np.bincount(reach[11:59_990], minlength=5)[1:], [1, 1, 1, 1])


def test_words_are_kept_at_their_rate() -> None:
    counts = np.array([1_000_000, 20_000, 100, 0])
    keep = keep_probabilities(counts, 1e-3)
    assert keep[0] == pytest.approx((1e-3 / (1_000_000 / 1_020_100)) ** 0.5)
    assert keep[1] == pytest.approx((1e-3 / (20_000 / 1_020_100)) ** 0.5)
    assert keep[2:].tolist() == [1, 1]
    ids = np.repeat([0, 1, 2], 30_000)
    left = np.bincount(subsample(ids, keep, np.random.default_rng(0)), minlength=3)
    assert_share(int(left[0]), 30_000, keep[0])
    assert_share(int(left[1]), 30_000, keep[1])
    assert left[2] == 30_000
    assert keep_probabilities(counts, 1.0).tolist() == [1, 1, 1, 1]
    assert keep_probabilities(np.zeros(2)).tolist() == [1, 1]
    assert keep_probabilities(np.zeros(0)).shape == (0,)


def test_windows_reach_across_what_is_dropped() -> None:
    keep = np.array([1.0, 0.0])
    centres, contexts = skip_gram_pairs(np.array([0, 1, 1, 1, 0]), 1, keep, np.random.default_rng(0))
    assert (centres.tolist(), contexts.tolist()) == ([0, 0], [0, 0])


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40).filter(any), st.floats(0, 2))
def test_the_alias_table_holds_the_probabilities(counts: list[int], power: float) -> None:
    sampler = NegativeSampler(np.array(counts), power)
    weights = np.array([count**power if count else 0.0 for count in counts])
    assert sampler.probabilities == pytest.approx(weights / weights.sum(), rel=1e-9)
    threshold, alias = alias_table(sampler.probabilities)
    back = threshold.copy()
    for column, other in enumerate(alias):
        back[other] += 1 - threshold[column]
    assert back / len(counts) == pytest.approx(sampler.probabilities, abs=1e-12)
    never = np.array(counts) == 0
    assert not threshold[never].any()
    assert not never[alias[threshold < 1]].any()


@pytest.mark.parametrize("power", [0.75, 1.0, 0.0])
def test_negatives_are_drawn_by_their_counts(power: float) -> None:
    counts = np.array([5000, 1, 0, 300, 40, 40, 7])
    drawn = NegativeSampler(counts, power).sample((500, 400), np.random.default_rng(0))
    assert drawn.shape == (500, 400)
    assert drawn.dtype == np.int64
    found = np.bincount(drawn.ravel(), minlength=7)
    assert found[2] == 0
    seen = counts > 0
    assert_distributed(found[seen], counts[seen].astype(float) ** power)


def test_negatives_are_independent() -> None:
    drawn = NegativeSampler(np.array([81, 16])).sample((60_000, 2), np.random.default_rng(1))
    one = 27 / (27 + 8)
    both = np.bincount(drawn[:, 0] * 2 + drawn[:, 1])
    assert_distributed(both, [one * one, one * (1 - one), one * (1 - one), (1 - one) ** 2])


@pytest.mark.parametrize("shape", [0, (0, 5), (3, 0)])
def test_no_negatives(shape: int | tuple[int, int]) -> None:
    sampler = NegativeSampler(np.array([3]))
    assert sampler.sample(shape, np.random.default_rng(0)).size == 0
    assert sampler.sample(4, np.random.default_rng(0)).tolist() == [0, 0, 0, 0]


def test_all_follows_the_generator() -> None:
    ids, sampler = words(200), NegativeSampler(np.arange(1, 11))
    runs = []
    for seed in (5, 5, 6):
        generator = np.random.default_rng(seed)
        pairs = skip_gram_pairs(ids, 3, half(True), generator)
        runs.append((pairs.contexts.tolist(), sampler.sample((9, 2), generator).tolist()))
    assert runs[0] == runs[1] != runs[2]


def test_at_least_two_million_pairs_a_second() -> None:
    """With five negatives each: processor time of one core, the best of five."""
    generator = np.random.default_rng(0)
    counts = 10**7 // np.arange(1, 30_001)
    sampler, keep = NegativeSampler(counts), keep_probabilities(counts, 1e-3)
    ids = sampler.sample(100_000, generator)
    rates = []
    for _ in range(5):
        began = process_time()
        pairs = skip_gram_pairs(ids, 5, keep, generator)
        sampler.sample((len(pairs.centres), 5), generator)
        rates.append(len(pairs.centres) / (process_time() - began))
    assert max(rates) > 2e6


def test_what_cannot_be() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(UserError, match="window is 0"):
        skip_gram_pairs(words(5), 0, None, generator)
    with pytest.raises(UserError, match="one-dimensional"):
        cbow_contexts(words(6).reshape(2, 3), 2, None, generator)
    with pytest.raises(UserError, match="threshold is 0"):
        keep_probabilities(np.ones(3), 0)
    with pytest.raises(UserError, match="one non-negative number per word"):
        keep_probabilities(np.array([1, -1]))
    for empty in (np.zeros(3), np.zeros(0)):
        with pytest.raises(UserError, match="no word to sample"):
            NegativeSampler(empty)
