"""SUBLEQ, one instruction of a computer: its whole state before, and after.

A row of S = 2^bits cells of ``bits`` bits and the program counter p; a, b, c are the cells at p, p + 1, p + 2:

    memory[b] ← memory[b] - memory[a];   p ← c if the result is at most 0, else p + 3

Addresses and numbers count modulo S, numbers in two's complement.
"""

from __future__ import annotations

import numpy as np

from qkv.data.checks import check_at_least


def subleq_batch(rng: np.random.Generator, batch: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate a random batch: rows of uniform words, and the rows after one instruction; both (B, 2^bits + 1), int64.

    Raises ``UserError`` for a negative ``batch`` or ``bits`` below 1.
    """
    check_at_least("batch", batch, 0)
    check_at_least("bits", bits, 1)
    rows = rng.integers(0, 1 << bits, (batch, (1 << bits) + 1))
    return rows, following_rows(rows)


def following_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows (B, S + 1) after one instruction each."""
    memory, counter, size = rows[:, :-1].copy(), rows[:, -1], rows.shape[1] - 1
    row = np.arange(len(rows))
    a, b, c = (memory[row, (counter + i) % size] for i in range(3))
    result = (memory[row, b] - memory[row, a]) % size
    memory[row, b] = result
    jumps = (result == 0) | (result >= size // 2)
    return np.concatenate((memory, np.where(jumps, c, (counter + 3) % size)[:, None]), 1)
