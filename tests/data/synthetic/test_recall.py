"""Recall: the symbol first, fillers that tell nothing, and the symbol asked for at the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed

from qkv.data.batching.batch import IGNORED
from qkv.data.batching.rows import random
from qkv.data.synthetic.recall import recall_batch, vocab_size
from qkv.system.errors import UserError


@given(st.integers(0, 4), st.integers(0, 12), st.integers(1, 9), st.integers(1, 9), st.integers(0, 999))
def test_the_answer_is_the_symbol_that_was_shown(
    batch: int, distance: int, symbols: int, fillers: int, seed: int
) -> None:
    ids, targets = recall_batch(random(seed, 0), batch, distance, symbols, fillers)
    assert ids.shape == targets.shape == (batch, distance + 2)
    assert ids.dtype == targets.dtype == np.int64
    assert np.array_equal(targets[:, -1], ids[:, 0])
    assert (targets[:, :-1] == IGNORED).all()
    assert ((ids[:, 0] >= 0) & (ids[:, 0] < symbols)).all()
    assert ((ids[:, 1:-1] >= symbols) & (ids[:, 1:-1] < symbols + fillers)).all()
    assert (ids[:, -1] == vocab_size(symbols, fillers) - 1).all()


def test_symbols_and_fillers_are_uniform_and_tell_nothing_of_each_other() -> None:
    ids, _ = recall_batch(random(0, 0), 20_000, 2, 4, 3)
    assert_distributed(np.bincount(ids[:, 0]), np.ones(4))
    together = ids[:, 0] * 9 + (ids[:, 1] - 4) * 3 + ids[:, 2] - 4
    assert_distributed(np.bincount(together), np.ones(36))


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first = recall_batch(random(1, 2), 4, 9)[0]
    assert np.array_equal(first, recall_batch(random(1, 2), 4, 9)[0])
    assert not np.array_equal(first, recall_batch(random(1, 3), 4, 9)[0])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((-1, 3), "batch is -1"),
        ((1, -3), "distance is -3"),
        ((1, 3, 0), "symbols is 0"),
        ((1, 3, 2, 0), "fillers is 0"),
    ],
)
def test_what_cannot_be(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recall_batch(random(0, 0), *sizes)
