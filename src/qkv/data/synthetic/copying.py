"""Copying: symbols, a separator token, and the same symbols again.

    ids        a  b  c  =  a  b
    targets    -  -  -  a  b  c        "-": no target

A causal model has to hold the whole text, so its state has to grow with it (Jelassi et al. 2024, "Repeat After Me"; the
copying problem of Arjovsky et al. 2016 has a pause in between). Chance is 1 / ``symbols``.
"""

from __future__ import annotations

import numpy as np

from qkv.data.batching.batch import IGNORED
from qkv.data.checks import check_at_least


def copying_batch(
    rng: np.random.Generator, batch: int, length: int, symbols: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Generate a random batch: ``ids`` and ``targets`` (B, 2 ``length``), int64; the separator is the id ``symbols``.

    Symbols are uniform. Targets of the first ``length`` positions are ``IGNORED``. Raises ``UserError`` for a negative
    ``batch``, or ``length`` or ``symbols`` below 1.
    """
    for name, value, least in (("batch", batch, 0), ("length", length, 1), ("symbols", symbols, 1)):
        check_at_least(name, value, least)
    text = rng.integers(0, symbols, (batch, length))
    mark = np.full((batch, 1), symbols)
    nothing = np.full((batch, length), IGNORED)
    return np.concatenate((text, mark, text[:, :-1]), 1), np.concatenate((nothing, text), 1)
