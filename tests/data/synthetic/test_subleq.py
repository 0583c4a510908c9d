"""States of SUBLEQ computers: uniform words, and the rows that the interpreter returns."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tasks.objectives.chance import assert_distributed

from qkv.data.batching.rows import random
from qkv.data.synthetic.subleq import subleq_batch
from qkv.system.errors import UserError
from qkv.theory.subleq.interpreter import next_row


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_rows_after_an_instruction_are_those_of_the_interpreter(bits: int) -> None:
    rows, following = subleq_batch(random(7, bits), 300, bits)
    assert rows.dtype == following.dtype == np.int64
    assert rows.shape == following.shape == (300, 2**bits + 1)
    assert [next_row(row) for row in rows.tolist()] == following.tolist()


def test_words_are_uniform_and_batches_repeat() -> None:
    rows, _ = subleq_batch(random(0, 0), 3000, 2)
    assert_distributed(np.bincount(rows.ravel()), np.ones(4))
    assert_distributed(np.bincount(rows[:, 0] * 4 + rows[:, -1]), np.ones(16))
    assert np.array_equal(rows, subleq_batch(random(0, 0), 3000, 2)[0])
    assert not np.array_equal(rows, subleq_batch(random(0, 1), 3000, 2)[0])


@pytest.mark.parametrize(("sizes", "message"), [((-1, 3), "batch is -1"), ((1, 0), "bits is 0")])
def test_sizes_that_do_not_exist_are_refused(sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        subleq_batch(random(0, 0), *sizes)
