"""Associative recall: key-value pairs, then the keys again in another order, each followed by its value.

    ids        k1  v1  k2  v2  k3  v3 | k2  v2  k3  v3  k1  v1
    targets    -   -   -   -   -   -    v2  -   v3  -   v1  -       "-": no target

A causal model has to hold all pairs at once, so its state has to grow with their number. The setting is multi-query
associative recall (Arora et al. 2023, "Zoology"), where every key is queried and there are no gaps; chance is 1 /
``values``.
"""

from __future__ import annotations

import numpy as np

from qkv.data.batching.batch import IGNORED
from qkv.data.checks import check_at_least


def associative_recall_batch(
    rng: np.random.Generator, batch: int, pairs: int, keys: int = 64, values: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Generate a random batch: ``ids`` and ``targets`` (B, 4 ``pairs``), int64; keys are the ids below ``keys``, the
    ids of values follow.

    The keys of a row are different, drawn uniformly; values are uniform and may repeat. Targets are ids too, at the
    repeated keys; all other targets are ``IGNORED``.

    Raises ``UserError`` for a negative ``batch``, ``pairs`` or ``values`` below 1, or fewer ``keys`` than pairs.
    """
    for name, value, least in (("batch", batch, 0), ("pairs", pairs, 1), ("keys", keys, pairs), ("values", values, 1)):
        check_at_least(name, value, least)
    chosen = rng.random((batch, keys)).argsort(1)[:, :pairs]
    chosen_values = keys + rng.integers(0, values, (batch, pairs))
    order = rng.random((batch, pairs)).argsort(1)
    queries, answers = (np.take_along_axis(each, order, 1) for each in (chosen, chosen_values))
    ids = np.stack((np.concatenate((chosen, queries), 1), np.concatenate((chosen_values, answers), 1)), 2).reshape(
        batch, 4 * pairs
    )
    targets = np.full_like(ids, IGNORED)
    targets[:, 2 * pairs :: 2] = answers
    return ids, targets
