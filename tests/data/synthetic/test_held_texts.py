"""Associative recall and copying: answers by loops, distributions, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.objectives.chance import assert_distributed

from qkv.data.batching.batch import IGNORED
from qkv.data.batching.rows import random
from qkv.data.synthetic.associative_recall import associative_recall_batch
from qkv.data.synthetic.copying import copying_batch
from qkv.system.errors import UserError


@given(st.integers(0, 4), st.integers(1, 9), st.integers(0, 5), st.integers(1, 9), st.integers(0, 999))
def test_every_key_is_asked_once_and_answered_by_its_value(
    batch: int, pairs: int, more: int, values: int, seed: int
) -> None:
    ids, targets = associative_recall_batch(random(seed, 0), batch, pairs, pairs + more, values)
    assert ids.shape == targets.shape == (batch, 4 * pairs)
    assert ids.dtype == targets.dtype == np.int64
    for row, wanted in zip(ids.tolist(), targets.tolist(), strict=True):
        known: dict[int, int] = {}
        for i in range(0, 2 * pairs, 2):
            assert row[i] not in known
            assert 0 <= row[i] < pairs + more <= row[i + 1] < pairs + more + values
            known[row[i]] = row[i + 1]
        assert wanted[: 2 * pairs] == [IGNORED] * (2 * pairs)
        for i in range(2 * pairs, 4 * pairs, 2):
            assert (wanted[i], wanted[i + 1]) == (known.pop(row[i]), IGNORED)
            assert row[i + 1] == wanted[i]
        assert not known


@given(st.integers(0, 4), st.integers(1, 12), st.integers(1, 9), st.integers(0, 999))
def test_the_text_follows_itself(batch: int, length: int, symbols: int, seed: int) -> None:
    ids, targets = copying_batch(random(seed, 0), batch, length, symbols)
    assert ids.shape == targets.shape == (batch, 2 * length)
    for row, wanted in zip(ids.tolist(), targets.tolist(), strict=True):
        text = row[:length]
        assert all(0 <= symbol < symbols for symbol in text)
        assert row[length:] == [symbols, *text[:-1]]
        assert wanted == [IGNORED] * length + text


def test_keys_orders_and_values_are_uniform() -> None:
    ids, _ = associative_recall_batch(random(0, 0), 20_000, 2, 4, 3)
    chosen = ids[:, 0] * 4 + ids[:, 2]
    different = [a * 4 + b for a in range(4) for b in range(4) if a != b]
    assert_distributed(np.bincount(chosen, minlength=16)[different], np.ones(12))
    assert_distributed(np.bincount(ids[:, 1] - 4), np.ones(3))
    assert_distributed(np.bincount((ids[:, 4] == ids[:, 0]).astype(int)), np.ones(2))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="keys"):
        associative_recall_batch(random(0, 0), 1, 5, keys=4)
    with pytest.raises(UserError, match="length"):
        copying_batch(random(0, 0), 1, 0)
