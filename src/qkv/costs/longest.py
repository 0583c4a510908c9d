"""Longest sequence whose state fits in memory."""

from __future__ import annotations

from qkv.models.transformer import Transformer

_FAR = 1 << 40
"""Number of positions that counts as unlimited."""


def longest(model: Transformer, memory: int) -> int | None:
    """Return the maximum number of positions of one row whose decoding state fits into ``memory`` bytes together with
    the weights.

    A learned position table is a limit, too. None: no limit; 0: the weights alone do not fit.
    """
    room = memory - sum(p.numel() * p.element_size() for p in model.parameters())
    limit = model.spec.position_limit
    most = _FAR if limit is None else limit
    if model.state_bytes(most) <= room:
        return limit
    low, high = 0, most  # bisection: ``low`` fits or is 0, ``high`` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if model.state_bytes(middle) <= room else (low, middle)
    return low
