"""BERT masking: choice, replacement, whole words, and equality with the transformers library on the same draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed, assert_share
from tests.tasks.objectives.published import collator_tokenizer

from qkv.data.batching.batch import IGNORED
from qkv.system.errors import UserError
from qkv.tasks.objectives.masked import Draws, apply, draw, mask_tokens

VOCAB, MASK = 50, 4


def rows(batch: int, length: int, seed: int = 0, specials: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(5, VOCAB, (batch, length)), generator.random((batch, length)) < specials


def masked(ids: np.ndarray, special: np.ndarray, seed: int = 1, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    return mask_tokens(ids, special, MASK, VOCAB, np.random.default_rng(seed), **options)


@given(
    st.integers(0, 3),
    st.integers(0, 9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 99),
)
def test_only_targets_change_and_targets_are_the_tokens(
    batch: int, length: int, rate: float, replaced: float, random: float, with_words: bool, seed: int
) -> None:
    ids, special = rows(batch, length, seed)
    words = np.random.default_rng(seed).integers(-1, 4, ids.shape) if with_words else None
    before = ids.copy(), special.copy()
    corrupted, targets = masked(
        ids, special, seed, rate=rate, replaced=replaced, random=random * (1 - replaced), words=words
    )
    asked = targets != IGNORED
    assert corrupted.shape == targets.shape == ids.shape
    assert corrupted.dtype == targets.dtype == np.int64
    assert np.array_equal(targets[asked], ids[asked])
    assert np.array_equal(corrupted[~asked], ids[~asked])
    assert not (asked & special).any()
    assert ((corrupted >= 0) & (corrupted < VOCAB)).all()
    assert np.array_equal(ids, before[0])
    assert np.array_equal(special, before[1])


@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize("words", [False, True])
def test_rates_of_zero_and_one(length: int, words: bool) -> None:
    ids, special = rows(40, length)
    numbers = np.broadcast_to(np.arange(length) // 2, ids.shape) if words else None
    corrupted, targets = masked(ids, special, rate=0.0, words=numbers)
    assert np.array_equal(corrupted, ids)
    assert (targets == IGNORED).all()
    corrupted, targets = masked(ids, special, rate=1.0, replaced=1.0, random=0.0, words=numbers)
    assert np.array_equal(targets, np.where(special, IGNORED, ids))
    assert np.array_equal(corrupted, np.where(special, ids, MASK))
    assert np.array_equal(masked(ids, special, rate=1.0, replaced=0.0, random=0.0, words=numbers)[0], ids)


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_rows_of_special_tokens_alone(length: int) -> None:
    ids, _ = rows(3, length)
    for words in (None, np.zeros_like(ids)):
        corrupted, targets = masked(ids, np.ones(ids.shape, bool), rate=1.0, words=words)
        assert np.array_equal(corrupted, ids)
        assert (targets == IGNORED).all()


def test_shares_of_targets_and_of_what_becomes_of_them() -> None:
    ids = np.full((400, 500), 9)
    corrupted, targets = masked(ids, np.zeros(ids.shape, bool))
    asked = targets != IGNORED
    assert_share(int(asked.sum()), ids.size, 0.15)
    found = np.bincount(corrupted[asked], minlength=VOCAB)
    chances = np.full(VOCAB, 0.1 / VOCAB)
    chances[MASK] += 0.8
    chances[9] += 0.1
    assert_distributed(found, chances)


def test_targets_are_independent_of_each_other_and_of_what_becomes_of_them() -> None:
    ids = np.full((400, 500), 9)
    corrupted, targets = masked(ids, np.zeros(ids.shape, bool), rate=0.3, replaced=0.5, random=0.0)
    asked, hidden = targets != IGNORED, corrupted == MASK
    both = asked[:, 1:].astype(int) * 2 + asked[:, :-1]
    assert_distributed(np.bincount(both[:, ::2].ravel()), [0.49, 0.21, 0.21, 0.09])
    pairs = asked[:, 1:] & asked[:, :-1]
    kinds = (hidden[:, 1:].astype(int) * 2 + hidden[:, :-1])[pairs]
    assert_distributed(np.bincount(kinds), [1, 1, 1, 1])


def test_words_are_chosen_whole_at_the_rate_and_their_tokens_changed_one_by_one() -> None:
    generator = np.random.default_rng(5)
    ids, special = rows(300, 300)
    words = np.cumsum(generator.random(ids.shape) < 0.6, axis=1)
    corrupted, targets = masked(ids, special, words=words, rate=0.2, replaced=0.5, random=0.0)
    chosen = words_chosen = 0
    halves = 0
    for row in range(len(ids)):
        for word in np.unique(words[row][~special[row]]):
            inside = (words[row] == word) & ~special[row]
            asked = targets[row][inside] != IGNORED
            assert asked.all() or not asked.any()
            chosen += bool(asked.any())
            words_chosen += 1
            hidden = corrupted[row][inside] == MASK
            halves += bool(asked.any() and hidden.any() and not hidden.all())
    assert_share(chosen, words_chosen, 0.2)
    assert halves > 100


def test_a_word_is_its_number_within_its_row_wherever_its_tokens_stand() -> None:
    ids = np.arange(5, 17).reshape(2, 6)
    words = np.array([[7, 3, 7, -1, 3, 7], [3, 3, 7, 7, 7, 3]])
    special = np.zeros(ids.shape, bool)
    special[0, 0] = True
    chosen = np.array([[0.0, 0.9, 0.1, 0.0, 0.0, 0.9], [0.9, 0.1, 0.1, 0.9, 0.9, 0.0]])
    draws = Draws(chosen, np.zeros(ids.shape), np.zeros(ids.shape, int))
    _, targets = apply(ids, special, MASK, draws, rate=0.5, words=words)
    assert (targets != IGNORED).tolist() == [
        [False, False, True, False, False, True],
        [False, False, True, True, True, False],
    ]


def test_a_batch_is_a_function_of_the_generator() -> None:
    ids, special = rows(4, 50)
    one, same, other = masked(ids, special, 3), masked(ids, special, 3), masked(ids, special, 4)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, "rate is 1.5"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"replaced": -0.1}, "replaced is -0.1"),
        ({"replaced": 0.8, "random": 0.3}, "their sum must be at most 1"),
        ({"words": np.zeros((2, 4), int)}, "words has the shape"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    ids, special = rows(2, 3)
    with pytest.raises(UserError, match=message):
        masked(ids, special, **options)


def test_wrong_shapes_and_mask() -> None:
    ids, special = rows(2, 3)
    generator = np.random.default_rng(0)
    with pytest.raises(UserError, match="special has the shape"):
        mask_tokens(ids, special[:1], MASK, VOCAB, generator)
    with pytest.raises(UserError, match="batch of rows"):
        mask_tokens(ids[0], special[0], MASK, VOCAB, generator)
    with pytest.raises(UserError, match="mask_id is 50"):
        mask_tokens(ids, special, VOCAB, VOCAB, generator)


def draws_of(chosen: np.ndarray, replaced: np.ndarray, random: np.ndarray, other: np.ndarray, share: float) -> Draws:
    """Yes and no as uniform numbers that say the same: the lowest for yes, beyond all for no."""
    kind = np.where(replaced, 0.0, np.where(random, share, 1.0))
    return Draws(np.where(chosen, 0.0, 1.0), kind, other)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_the_collator_of_transformers_with_numpy(seed: int) -> None:
    from transformers import DataCollatorForLanguageModeling

    tokenizer = collator_tokenizer(VOCAB)
    ids, special = rows(6, 40, seed)
    collator = DataCollatorForLanguageModeling(tokenizer, return_tensors="np", seed=seed)
    features = [
        {"input_ids": i.tolist(), "special_tokens_mask": s.astype(int).tolist()}
        for i, s in zip(ids, special, strict=True)
    ]
    theirs = collator(features)

    generator = np.random.default_rng(seed)
    chosen = generator.binomial(1, np.where(special, 0, 0.15)) == 1
    replaced = generator.binomial(1, 0.8, ids.shape) == 1
    random = generator.binomial(1, (0.1 / (1 - 0.8)), ids.shape) == 1
    other = np.zeros_like(ids)
    drawn = chosen & ~replaced & random
    other[drawn] = generator.integers(0, VOCAB, drawn.sum())
    corrupted, targets = apply(ids, special, MASK, draws_of(chosen, replaced, random, other, 0.8))
    assert np.array_equal(corrupted, theirs["input_ids"])
    assert np.array_equal(targets, theirs["labels"])
    assert (corrupted != ids).any()


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_the_collator_of_transformers_with_torch(seed: int) -> None:
    import torch
    from transformers import DataCollatorForLanguageModeling

    tokenizer = collator_tokenizer(VOCAB)
    ids, special = rows(6, 40, seed)
    options: dict[str, Any] = {"mlm_probability": 0.4, "mask_replace_prob": 0.5, "random_replace_prob": 0.25}
    collator = DataCollatorForLanguageModeling(tokenizer, return_tensors="pt", seed=seed, **options)
    features = [
        {"input_ids": i.tolist(), "special_tokens_mask": s.astype(int).tolist()}
        for i, s in zip(ids, special, strict=True)
    ]
    theirs = collator(features)

    generator = torch.Generator().manual_seed(seed)
    chances = torch.from_numpy(np.where(special, 0, np.float32(0.4)).astype(np.float32))
    chosen = torch.bernoulli(chances, generator=generator).bool().numpy()
    replaced, random = (
        torch.bernoulli(torch.full(ids.shape, 0.5), generator=generator).bool().numpy() for _ in range(2)
    )
    other = torch.randint(VOCAB, ids.shape, generator=generator).numpy()
    corrupted, targets = apply(ids, special, MASK, draws_of(chosen, replaced, random, other, 0.5), 0.4, 0.5, 0.25)
    assert np.array_equal(corrupted, theirs["input_ids"].numpy())
    assert np.array_equal(targets, theirs["labels"].numpy())


@pytest.mark.parametrize("seed", range(4))
def test_whole_words_equal_to_the_collator_of_transformers(seed: int) -> None:
    from transformers import DataCollatorForLanguageModeling

    tokenizer = collator_tokenizer(VOCAB)
    ids, special = rows(6, 40, seed)
    begins = np.random.default_rng(100 + seed).random(ids.shape) < 0.5
    starts = 3 * np.arange(40) + np.cumsum(begins, axis=1)  # a gap before each word that begins
    offsets = np.stack([starts, starts + 3], axis=2)
    collator = DataCollatorForLanguageModeling(
        tokenizer,
        whole_word_mask=True,
        mask_replace_prob=1.0,
        random_replace_prob=0.0,
        mlm_probability=0.3,
        return_tensors="np",
        seed=seed,
    )
    collator.create_rng()
    theirs = collator.numpy_mask_tokens(ids.copy(), special.astype(int), offsets)

    after_special = np.concatenate([np.zeros((6, 1), bool), special[:, :-1]], axis=1)
    first = ~special & (begins | after_special | (np.arange(40) == 0))
    chosen = np.random.default_rng(seed).binomial(1, np.where(first, 0.3, 0)) == 1
    draws = draws_of(chosen, np.ones_like(special), special, ids, 1.0)
    ours = apply(ids, special, MASK, draws, 0.3, 1.0, 0.0, words=np.cumsum(first, axis=1))
    assert np.array_equal(ours[0], theirs[0])
    assert np.array_equal(ours[1], theirs[1])
    assert (ours[1] != IGNORED).any()


def test_draws_fill_their_ranges() -> None:
    draws = draw(np.random.default_rng(0), (100, 100), 7)
    assert_distributed(np.bincount(draws.other.ravel(), minlength=7), np.ones(7))
    for uniform in (draws.chosen, draws.kind):
        assert_distributed(np.histogram(uniform, 10, (0, 1))[0], np.ones(10))
