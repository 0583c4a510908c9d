"""Sorting: uniform numbers, and the same in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed

from qkv.data.batching.rows import random
from qkv.data.synthetic.sorting import sorting_batch
from qkv.system.errors import UserError


@given(st.integers(0, 4), st.integers(0, 12), st.integers(1, 20), st.integers(0, 999))
def test_targets_are_the_numbers_in_order(batch: int, length: int, high: int, seed: int) -> None:
    ids, targets = sorting_batch(random(seed, 3), batch, length, high)
    assert ids.shape == targets.shape == (batch, length)
    assert ids.dtype == targets.dtype == np.int64
    assert [sorted(row) for row in ids.tolist()] == targets.tolist()
    assert ((ids >= 0) & (ids < high)).all()


def test_numbers_are_uniform_and_independent() -> None:
    ids, _ = sorting_batch(random(0, 0), 2000, 10, 7)
    assert_distributed(np.bincount(ids.ravel()), np.ones(7))
    assert_distributed(np.bincount(ids[:, 0] * 7 + ids[:, 1]), np.ones(49))


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first = sorting_batch(random(1, 2), 4, 9, 50)[0]
    assert np.array_equal(first, sorting_batch(random(1, 2), 4, 9, 50)[0])
    assert not np.array_equal(first, sorting_batch(random(1, 3), 4, 9, 50)[0])


@pytest.mark.parametrize(
    ("sizes", "message"), [((-1, 3, 5), "batch is -1"), ((1, -3, 5), "length is -3"), ((1, 3, 0), "high is 0")]
)
def test_what_cannot_be(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sorting_batch(random(0, 0), *sizes)
