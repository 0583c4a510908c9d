"""Sorting numbers: a task with exact answers, where every output depends on all inputs."""

from __future__ import annotations

import numpy as np

from qkv.data.corruption.checks import check_at_least


def sorting_batch(rng: np.random.Generator, batch: int, length: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """``ids`` (B, N): numbers from 0 to ``high`` - 1, uniform and with repetition. ``targets`` (B, N): the same, rising. Both int64.

    The number at place k of the targets is the k-th smallest, so a model tags each position: 3 1 2 1 → 1 1 2 3. It must not be causal.

        ids, targets = sorting_batch(random(seed, step), 64, 10, 100)

    ``UserError``: a negative ``batch`` or ``length``, a ``high`` below 1.
    """
    check_at_least("batch", batch, 0)
    check_at_least("length", length, 0)
    check_at_least("high", high, 1)
    ids = rng.integers(0, high, (batch, length))
    return ids, np.sort(ids, axis=1)
