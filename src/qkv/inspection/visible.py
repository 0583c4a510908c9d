"""Number of visible (query, key) pairs of a mask, counted without building it.

The keys visible to a query are the bits of one integer, so a row of n keys takes n/64 machine words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

from qkv.spec.errors import UserError
from qkv.spec.masks import AllOf, AnyOf, Blocks, Causal, Fixed, Full, Mask, Prefix, Strided, Window

_ROWS: dict[type[Mask], Callable[[Any, int, int], int]] = {}
_EXACT_UP_TO = 4096


def visible_keys(kind: type[Mask]) -> Callable[[Callable[[Any, int, int], int]], Callable[[Any, int, int], int]]:
    """Decorator: register for a kind of mask a function (mask, query, length) -> integer with bit j set if key j is visible."""

    def register(row: Callable[[Any, int, int], int]) -> Callable[[Any, int, int], int]:
        _ROWS[kind] = row
        return row

    return register


def visible_pairs(mask: Mask, length: int) -> int:
    """Number of visible pairs among ``length`` positions; above 4,096 positions estimated from 4,096 rows."""
    key: Any = mask  # a frozen spec is hashable, which its static type does not tell
    return _visible_pairs(key, length)


@lru_cache(maxsize=256)
def _visible_pairs(mask: Any, length: int) -> int:
    if length <= _EXACT_UP_TO:
        return sum(_row(mask, query, length).bit_count() for query in range(length))
    queries = [(2 * i + 1) * length // (2 * _EXACT_UP_TO) for i in range(_EXACT_UP_TO)]
    return sum(_row(mask, query, length).bit_count() for query in queries) * length // _EXACT_UP_TO


def _row(mask: Mask, query: int, length: int) -> int:
    if type(mask) not in _ROWS:
        raise UserError(f"no count of visible pairs is registered for the mask {mask.kind!r}")
    return _ROWS[type(mask)](mask, query, length)


def _range(start: int, stop: int) -> int:
    """Bits start … stop - 1."""
    start, stop = max(start, 0), max(stop, 0)
    return ((1 << stop) - 1) >> start << start


def _every(stride: int, first: int, length: int) -> int:
    """Bits first, first + stride, … below ``length``, set by doubling."""
    bits, filled = 1, stride
    while filled < length:
        bits |= bits << filled
        filled *= 2
    return (bits << first) & _range(0, length)


@visible_keys(Full)
def _full(mask: Full, query: int, length: int) -> int:
    return _range(0, length)


@visible_keys(Causal)
def _causal(mask: Causal, query: int, length: int) -> int:
    return _range(0, query + 1)


@visible_keys(Window)
def _window(mask: Window, query: int, length: int) -> int:
    return _range(query - mask.size + 1, min(query + mask.size, length)) | _range(0, min(mask.sinks, length))


@visible_keys(Prefix)
def _prefix(mask: Prefix, query: int, length: int) -> int:
    """A prefix of unknown length is counted as half of the row."""
    return _range(0, length // 2 if mask.length is None else min(mask.length, length))


@visible_keys(Strided)
def _strided(mask: Strided, query: int, length: int) -> int:
    return _every(mask.stride, query % mask.stride, length)


@visible_keys(Fixed)
def _fixed(mask: Fixed, query: int, length: int) -> int:
    start = query // mask.stride * mask.stride
    summaries = (_every(mask.stride, mask.stride - 1 - i, length) for i in range(min(mask.summary, mask.stride)))
    return reduce(int.__or__, summaries, _range(start, min(start + mask.stride, length)))


@visible_keys(Blocks)
def _blocks(mask: Blocks, query: int, length: int) -> int:
    start = query // mask.size * mask.size
    return _range(start - mask.back * mask.size, min(start + (mask.ahead + 1) * mask.size, length))


@visible_keys(AllOf)
def _all_of(mask: AllOf, query: int, length: int) -> int:
    return reduce(int.__and__, (_row(m, query, length) for m in mask.masks))


@visible_keys(AnyOf)
def _any_of(mask: AnyOf, query: int, length: int) -> int:
    return reduce(int.__or__, (_row(m, query, length) for m in mask.masks))


class Tiles(NamedTuple):
    """Blocks of queries and keys with visible pairs: their number, and the pairs in them."""

    count: int
    pairs: int


def visible_tiles(mask: Mask, length: int, block: int) -> Tiles:
    """Count the blocks of ``block`` queries and keys in which the first, middle or last query sees a key."""
    key: Any = mask
    return _visible_tiles(key, length, block)


@lru_cache(maxsize=256)
def _visible_tiles(mask: Any, length: int, block: int) -> Tiles:
    count = pairs = 0
    for first in range(0, length, block):
        last = min(first + block, length) - 1
        keys = _row(mask, first, length) | _row(mask, (first + last) // 2, length) | _row(mask, last, length)
        widths = [min(block, length - start) for start in range(0, length, block) if keys >> start & _range(0, block)]
        count += len(widths)
        pairs += (last - first + 1) * sum(widths)
    return Tiles(count, pairs)
