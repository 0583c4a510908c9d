"""Permutation language modelling: who sees whom, against loops and the transformers library on the same draws."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed, chi_square
from tests.tasks.objectives.published import collator_tokenizer

from qkv.data.batching.batch import IGNORED
from qkv.system.errors import UserError
from qkv.tasks.objectives.permutation import (
    PermutationBatch,
    arrange,
    context_lengths,
    draw,
    order_of,
    permutation_targets,
    spans,
)


def rows(batch: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, specials, and padding on the right that is special too."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, 50, (batch, length))
    padding = np.arange(length) >= generator.integers(0, length + 1, (batch, 1))
    return ids, (generator.random(ids.shape) < 0.1) | padding, padding


def drawn(length: int, seed: int = 0, rate: float = 1 / 6, batch: int = 4, max_span: int = 5) -> PermutationBatch:
    ids, special, padding = rows(batch, length, seed)
    return permutation_targets(ids, special, np.random.default_rng(seed), rate, max_span, padding)


@given(st.integers(0, 3), st.integers(0, 30), st.floats(0, 1), st.integers(1, 9), st.integers(0, 999))
def test_who_sees_whom(batch: int, length: int, rate: float, max_span: int, seed: int) -> None:
    ids, special, padding = rows(batch, length, seed)
    found = permutation_targets(ids, special, np.random.default_rng(seed), rate, max_span, padding)
    order = found.order
    assert np.array_equal(found.ids, ids)
    assert found.content_mask.shape == found.query_mask.shape == (batch, length, length)
    for b in range(batch):
        for i in range(length):
            for j in range(length):
                real = not padding[b, j]
                assert found.content_mask[b, i, j] == ((real and order[b, j] <= order[b, i]) or i == j)
                assert found.query_mask[b, i, j] == (real and order[b, j] < order[b, i])


@given(st.integers(0, 30), st.floats(0, 1), st.integers(0, 999))
def test_what_is_given_comes_first_and_targets_one_by_one(length: int, rate: float, seed: int) -> None:
    ids, special, _ = rows(4, length, seed)
    found = drawn(length, seed, rate)
    asked = found.targets != IGNORED
    assert found.targets.dtype == found.order.dtype == found.ids.dtype == np.int64
    assert not (asked & special).any()
    assert np.array_equal(found.targets[asked], ids[asked])
    for order, target in zip(found.order, asked, strict=True):
        assert sorted(order[target].tolist()) == list(range(1, target.sum() + 1))
        assert not order[~target].any()


@given(st.integers(1, 24), st.floats(0.05, 1), st.integers(0, 999))
def test_no_path_of_any_depth_leads_from_a_token_to_its_own_query(length: int, rate: float, seed: int) -> None:
    """What a query may know after many layers: what it sees, what that sees, and so on; never its own token."""
    found = drawn(length, seed, rate)
    for content, query, targets in zip(found.content_mask, found.query_mask, found.targets, strict=True):
        reach = np.eye(length, dtype=bool)
        for _ in range(length):
            reach = reach | (content.astype(int) @ reach.astype(int) > 0)
        known = query.astype(int) @ reach.astype(int) > 0
        assert not known.diagonal()[targets != IGNORED].any()


@pytest.mark.parametrize("length", [0, 1, 2, 25])
def test_rates_of_zero_and_one_and_rows_of_special_tokens_alone(length: int) -> None:
    ids, generator = np.full((3, length), 9), np.random.default_rng(0)
    free, special = np.zeros(ids.shape, bool), np.ones(ids.shape, bool)
    for found in (
        permutation_targets(ids, free, generator, rate=0.0),
        permutation_targets(ids, free, generator, rate=1e-300),
        permutation_targets(ids, special, generator, rate=1.0),
    ):
        assert (found.targets == IGNORED).all()
        assert found.content_mask.all()
        assert not found.query_mask.any()
    found = permutation_targets(ids, free, generator, rate=1.0)
    assert np.array_equal(found.targets, ids)
    assert np.array_equal(found.content_mask.sum(axis=2), found.order)
    assert np.array_equal(found.query_mask.sum(axis=2), found.order - 1)
    padded = permutation_targets(ids, free, generator, rate=1.0, padding=special)
    assert (padded.targets == IGNORED).all()
    assert np.array_equal(padded.content_mask, np.broadcast_to(np.eye(length, dtype=bool), padded.content_mask.shape))


def test_every_order_of_the_targets_is_as_likely() -> None:
    ids = np.full((4000, 4), 9)
    free = np.zeros(ids.shape, bool)
    free[:, 1] = True
    found = permutation_targets(ids, free, np.random.default_rng(0), rate=1.0)
    orders = Counter(map(tuple, found.order.tolist()))
    assert len(orders) == 6
    assert_distributed(list(orders.values()), [1] * 6)
    assert all(order[1] == 0 for order in orders)


@pytest.mark.parametrize(("rate", "max_span"), [(1 / 6, 5), (0.5, 1), (0.3, 8), (1.0, 3)])
def test_spans_are_uniform_in_size_and_place_and_a_share_of_all(rate: float, max_span: int) -> None:
    length = 12_000
    sizes, offsets = draw(np.random.default_rng(0), (8, length), rate, max_span)
    assert max_span == 1 or chi_square(np.bincount(sizes.ravel())[1:], np.ones(max_span)) < 4
    contexts = context_lengths(sizes, rate)
    for size in range(1, max_span + 1):
        ways = int(size / rate) - size + 1
        assert (contexts[sizes == size] == int(size / rate)).all()
        if ways > 1:
            assert_distributed(np.bincount(offsets[sizes == size], minlength=ways), np.ones(ways))
    chosen = spans(sizes, offsets, rate, length)
    expected = np.mean(range(1, max_span + 1)) / np.mean([int(size / rate) for size in range(1, max_span + 1)])
    assert abs(chosen.mean() - expected) < 0.005
    assert (contexts.sum(axis=1) >= length).all()


def spans_in_a_loop(sizes: list[int], offsets: list[int], rate: float, length: int) -> list[bool]:
    chosen, at = [False] * length, 0
    for size, offset in zip(sizes, offsets, strict=True):
        for place in range(at + offset, min(at + offset + size, length)):
            chosen[place] = True
        at += int(size / rate)
    return chosen


@given(st.integers(0, 80), st.floats(0.02, 1), st.integers(1, 9), st.integers(0, 999))
def test_spans_are_those_of_a_loop(length: int, rate: float, max_span: int, seed: int) -> None:
    sizes, offsets = draw(np.random.default_rng(seed), (3, length), rate, max_span)
    found = spans(sizes, offsets, rate, length)
    expected = [spans_in_a_loop(s, o, rate, length) for s, o in zip(sizes.tolist(), offsets.tolist(), strict=True)]
    assert found.tolist() == expected


def test_equal_priorities_go_from_left_to_right() -> None:
    chosen = np.array([[True, False, True, True]])
    assert order_of(chosen, np.array([[5, -9, 5, 1]])).tolist() == [[2, 0, 3, 1]]


def test_a_batch_is_a_function_of_the_generator() -> None:
    one, same, other = drawn(30, 3), drawn(30, 3), drawn(30, 4)
    assert np.array_equal(one.order, same.order)
    assert not np.array_equal(one.order, other.order)


def theirs(form: str, ids: np.ndarray, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The collator's batch, and the permutation that it drew for each row, found by drawing once more."""
    import torch
    from transformers import DataCollatorForPermutationLanguageModeling

    batch, length = ids.shape
    collator = DataCollatorForPermutationLanguageModeling(collator_tokenizer(50), return_tensors=form)
    halves = np.arange(length).reshape(2, -1).T
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        found = {key: np.asarray(value) for key, value in collator(ids.tolist()).items()}
        if form == "np":
            np.random.seed(seed)
            orders = [np.random.permutation(halves).T.ravel() for _ in range(batch)]
        else:
            torch.manual_seed(seed)
            torch_spans(batch, length)
            orders = [halves[torch.randperm(length // 2).numpy()].T.ravel() for _ in range(batch)]
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
    return found, np.array(orders)


def torch_spans(batch: int, length: int) -> list[tuple[list[int], list[int]]]:
    """What the collator draws with torch for each row: sizes, and where in its context each span begins."""
    import torch

    found = []
    for _ in range(batch):
        sizes: list[int] = []
        offsets: list[int] = []
        while sum(6 * size for size in sizes) < length:
            sizes.append(int(torch.randint(1, 6, (1,))))
            offsets.append(int(torch.randint(6 * sizes[-1] - sizes[-1] + 1, (1,))))
        found.append((sizes, offsets))
    return found


@pytest.mark.parametrize("form", ["np", "pt"])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_collator_of_transformers(form: str, seed: int) -> None:
    """Rows as theirs are: targets, their positions, what each target's query and each word's content may see.

    Two differences are meant. They hide the targets in the ids as well, so that the content stream never knows them;
    the paper's does. Their special tokens see targets by the place they have in the permutation and are seen by all, a
    path that leaks what the paper keeps apart if ids are not hidden; here special tokens are part of what is given.
    """
    ids = np.random.default_rng(seed).integers(5, 50, (4, 60))
    ids[:, [0, 20]] = 1, 2
    ids[1, 50:] = 0
    special = ids < 5
    found, orders = theirs(form, ids, seed)
    chosen = found["labels"] != IGNORED
    ours = arrange(ids, chosen, orders)
    assert chosen.sum() > 20
    assert np.array_equal(ours.targets, found["labels"])
    assert np.array_equal(ours.ids == found["input_ids"], ~chosen)
    assert np.array_equal(found["target_mapping"], np.broadcast_to(np.eye(60), (4, 60, 60)))
    may_see = found["perm_mask"] == 0
    assert np.array_equal(ours.query_mask[chosen], may_see[chosen])
    content = may_see | np.eye(60, dtype=bool)
    assert np.array_equal(ours.content_mask[~special], content[~special])


@pytest.mark.parametrize("seed", range(3))
def test_the_same_spans_as_the_collator_of_transformers(seed: int) -> None:
    import torch

    ids = np.random.default_rng(seed).integers(5, 50, (4, 60))
    found, _ = theirs("pt", ids, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draws = torch_spans(4, 60)
    for row, (sizes, offsets) in enumerate(draws):
        chosen = spans(np.array([sizes]), np.array([offsets]), 1 / 6, 60)[0]
        assert np.array_equal(chosen, found["labels"][row] != IGNORED)


def test_what_cannot_be() -> None:
    ids, special, padding = rows(2, 6)
    generator = np.random.default_rng(0)
    with pytest.raises(UserError, match="rate is 7"):
        permutation_targets(ids, special, generator, rate=7)
    with pytest.raises(UserError, match="max_span is 0"):
        permutation_targets(ids, special, generator, max_span=0)
    with pytest.raises(UserError, match="padding has the shape"):
        permutation_targets(ids, special, generator, padding=padding[:1])
