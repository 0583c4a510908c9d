"""Longest sequence whose state fits in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

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
    length = longest_state(model.state_bytes, room, most)
    return limit if length == most else length


def longest_state(state_bytes: Callable[[int], int], room: float, most: int) -> int:
    """Return the largest number of positions, at most ``most``, whose state fits ``room`` bytes; 0 if none does."""
    return bisect_right(range(1, most + 1), room, key=state_bytes)
