"""Examples in the batch of a step: functions of (seed, step), each once an epoch, no batch above its limit."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batching.examples import ExampleRows, filled, in_order
from qkv.spec import data as spec
from qkv.system.errors import UserError

sizes_of = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda sizes: np.array(sizes, np.int64))
BATCHINGS: dict[str, spec.Batching] = {
    "random_crops": spec.RandomCrops(),
    "length_buckets": spec.LengthBuckets(buckets=3),
    "token_buckets": spec.TokenBuckets(tokens=64),
}
EPOCHS = ["length_buckets", "token_buckets"]


def epochs(rows: ExampleRows, count: int) -> list[list[np.ndarray]]:
    """The batches of the first epochs, an epoch being as many as hold every example."""
    found, step = [], 0
    for _ in range(count):
        batches: list[np.ndarray] = []
        while sum(map(len, batches)) < len(rows.sizes):
            batches.append(rows.of_step(step))
            step += 1
        found.append(batches)
    return found


@pytest.mark.parametrize("kind", EPOCHS)
@given(sizes=sizes_of, batch_size=st.integers(1, 7), seed=st.integers(0, 2**63))
def test_every_example_comes_once_an_epoch(kind: str, sizes: np.ndarray, batch_size: int, seed: int) -> None:
    for batches in epochs(ExampleRows(sizes, BATCHINGS[kind], batch_size, seed), 3):
        assert Counter(np.concatenate(batches).tolist()) == Counter(range(len(sizes)))


@pytest.mark.parametrize("kind", BATCHINGS)
@given(sizes=sizes_of, batch_size=st.integers(1, 7), steps=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_a_batch_depends_on_seed_and_step_alone(
    kind: str, sizes: np.ndarray, batch_size: int, steps: list[int]
) -> None:
    in_turn = ExampleRows(sizes, BATCHINGS[kind], batch_size, 5)
    wanted = [in_turn.of_step(step).tolist() for step in range(41)]
    jumping = ExampleRows(sizes, BATCHINGS[kind], batch_size, 5)
    assert [jumping.of_step(step).tolist() for step in steps] == [wanted[step] for step in steps]


@pytest.mark.parametrize("kind", BATCHINGS)
def test_another_seed_and_another_epoch_give_another_order(kind: str) -> None:
    sizes = np.arange(1, 41)
    rows = ExampleRows(sizes, BATCHINGS[kind], 4, 5)
    first, second = epochs(rows, 2)
    other = epochs(ExampleRows(sizes, BATCHINGS[kind], 4, 6), 1)[0]
    plain = [[batch.tolist() for batch in batches] for batches in (first, second, other)]
    assert plain[0] != plain[1]
    assert plain[0] != plain[2]


@given(sizes_of, st.integers(1, 80), st.integers(0, 9))
def test_token_buckets_never_hold_more_than_they_may(sizes: np.ndarray, tokens: int, seed: int) -> None:
    for batch in epochs(ExampleRows(sizes, spec.TokenBuckets(tokens=tokens), 1, seed), 1)[0]:
        assert len(batch) * sizes[batch].max() <= tokens or len(batch) == 1


@given(sizes_of, st.integers(1, 80))
def test_filled_batches_are_as_large_as_they_can_be(sizes: np.ndarray, most: int) -> None:
    order = np.argsort(sizes, kind="stable")
    batches = filled(order, sizes, most)
    assert np.concatenate(batches).tolist() == order.tolist()
    for batch, after in pairwise(batches):
        assert (len(batch) + 1) * sizes[after[0]] > most


@given(sizes_of, st.integers(1, 7), st.integers(0, 9))
def test_length_buckets_have_full_batches_but_for_one(sizes: np.ndarray, batch_size: int, seed: int) -> None:
    (batches,) = epochs(ExampleRows(sizes, BATCHINGS["length_buckets"], batch_size, seed), 1)
    assert sum(len(batch) != batch_size for batch in batches) <= 1


def test_batches_of_similar_length_have_little_padding() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 400)
    shares = {kind: ExampleRows(sizes, batching, 8, 1).padding() for kind, batching in BATCHINGS.items()}
    many = ExampleRows(sizes, spec.LengthBuckets(buckets=20), 8, 1)
    batches = epochs(many, 1)[0]
    held = sum(len(batch) * int(sizes[batch].max()) for batch in batches)
    assert many.padding() == pytest.approx(1 - int(sizes.sum()) / held)
    assert many.padding() < shares["length_buckets"] < shares["random_crops"]
    assert shares["token_buckets"] < 0.2


def test_random_crops_draw_with_replacement() -> None:
    rows = ExampleRows(np.ones(10, np.int64), spec.RandomCrops(), 5, 0)
    drawn = np.concatenate([rows.of_step(step) for step in range(400)])
    counts = np.bincount(drawn, minlength=10)
    assert len(drawn) == 2000
    assert (abs(counts - 200) < 5 * np.sqrt(200)).all()
    assert any(len(set(rows.of_step(step))) < 5 for step in range(20))


def test_what_cuts_a_text_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"data\.batching: 'packed' is for running text, .* use one of best_fit, length_buckets, "
        r"random_crops, token_buckets",
    ):
        ExampleRows(np.ones(3, np.int64), spec.Packed(), 2, 0)


@given(sizes_of, st.integers(1, 7))
def test_in_order_gives_every_example_once_by_size(sizes: np.ndarray, batch_size: int) -> None:
    batches = list(in_order(sizes, batch_size, None))
    order = np.concatenate(batches)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert (np.diff(sizes[order]) >= 0).all()
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(sizes_of, st.integers(1, 7), st.integers(1, 9))
def test_a_few_batches_are_spread_over_all_examples(sizes: np.ndarray, batch_size: int, count: int) -> None:
    batches = list(in_order(sizes, batch_size, count))
    chosen = sorted(np.concatenate(batches).tolist())
    most = batch_size * count
    assert len(batches) == min(count, -(-len(sizes) // batch_size))
    assert len(set(chosen)) == len(chosen) == min(len(sizes), most)
    if 1 < most < len(sizes):
        assert (chosen[0], chosen[-1]) == (0, len(sizes) - 1)
        gaps = np.diff(chosen)
        assert gaps.max() - gaps.min() <= 1


def test_no_examples_give_no_batches() -> None:
    assert list(in_order(np.zeros(0, np.int64), 3, None)) == []
