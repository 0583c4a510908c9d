"""Delayed recall: a symbol is shown, filler tokens follow, and at the query token the model predicts the symbol.

    ids        S   f   f   …   f   ?
    targets    -   -   -   …   -   S        "-": no target

The symbol and the query token are ``distance`` + 1 positions apart; the fillers are independent of the symbol. Accuracy
over distance measures the model's memory; chance is 1 / ``symbols``. The time lag follows Hochreiter & Schmidhuber
(1997, "Long Short-Term Memory", section 5.2) and the copying problem of Arjovsky et al. (2016), with one symbol.
"""

from __future__ import annotations

import numpy as np

from qkv.data.batching.batch import IGNORED
from qkv.data.checks import check_at_least


def vocab_size(symbols: int = 16, fillers: int = 16) -> int:
    """Return the vocabulary size: symbols are the first ids, then fillers, then the query token."""
    return symbols + fillers + 1


def recall_batch(
    rng: np.random.Generator, batch: int, distance: int, symbols: int = 16, fillers: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Generate a random batch: ``ids`` and ``targets`` (B, ``distance`` + 2), int64; all targets but the last of a row
    are ``IGNORED``.

    The symbol is uniform among ``symbols``; each of the ``distance`` tokens in between is uniform among ``fillers``.
    The target is at the query token, so the task suits causal models.

        ids, targets = recall_batch(random(seed, step), 64, 100)

    Raises ``UserError`` for a negative ``batch`` or ``distance``, or ``symbols`` or ``fillers`` below 1.
    """
    for name, value, least in (
        ("batch", batch, 0),
        ("distance", distance, 0),
        ("symbols", symbols, 1),
        ("fillers", fillers, 1),
    ):
        check_at_least(name, value, least)
    symbol = rng.integers(0, symbols, (batch, 1))
    between = rng.integers(symbols, symbols + fillers, (batch, distance))
    query = np.full((batch, 1), vocab_size(symbols, fillers) - 1)
    targets = np.full((batch, distance + 2), IGNORED)
    targets[:, -1:] = symbol
    return np.concatenate([symbol, between, query], axis=1), targets
