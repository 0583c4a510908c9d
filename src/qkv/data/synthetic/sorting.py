"""Sorting numbers: a task with exact targets in which every output depends on all inputs."""

from __future__ import annotations

import numpy as np

from qkv.data.checks import check_at_least


def sorting_batch(rng: np.random.Generator, batch: int, length: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate a random batch: ``ids`` (B, N), independent uniform numbers from 0 to ``high`` - 1; ``targets`` (B, N),
    the same numbers sorted. Both are int64.

    Target k is the k-th smallest number, predicted at position k: 3 1 2 1 → 1 1 2 3. The model must not be causal.

        ids, targets = sorting_batch(random(seed, step), 64, 10, 100)

    Raises ``UserError`` for a negative ``batch`` or ``length``, or ``high`` below 1.
    """
    check_at_least("batch", batch, 0)
    check_at_least("length", length, 0)
    check_at_least("high", high, 1)
    ids = rng.integers(0, high, (batch, length))
    return ids, np.sort(ids, axis=1)
