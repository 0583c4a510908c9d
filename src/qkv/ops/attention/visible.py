"""Number of (query, key) pairs that a mask makes visible: a count block by block, without the whole matrix."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Mask, Sites, Span
from qkv.ops.selection.counting import Unseen

_BLOCK = 256
_MOST = 1 << 22
"""Number of pairs above which the number of visible pairs is estimated from evenly spaced queries."""


@lru_cache(maxsize=256)
def visible_pairs(mask: Mask, num_queries: int, num_keys: int) -> int:
    """Count the (query, key) pairs that ``mask`` makes visible, or estimate the number if there are very many pairs.

    The queries are the last ``num_queries`` of the ``num_keys`` positions. If the mask depends on the prefix length
    of a row, the prefix is assumed to be half of the row.
    """
    offset = num_keys - num_queries
    if mask.sees_all(Span(offset, num_keys - 1, 0, num_keys - 1)):
        return num_queries * num_keys
    if num_queries * num_keys > _MOST:
        count = max(_MOST // num_keys, 1)
        queries = offset + (2 * torch.arange(count) + 1) * num_queries // (2 * count)
        return _seen(mask, queries, slice(0, num_keys), num_keys) * num_queries // count
    pairs = 0
    for first in range(offset, num_keys, _BLOCK):
        queries = torch.arange(first, min(first + _BLOCK, num_keys))
        for start in range(0, num_keys, _BLOCK):
            keys = slice(start, min(start + _BLOCK, num_keys))
            span = Span(first, int(queries[-1]), keys.start, keys.stop - 1)
            if mask.sees_all(span):
                pairs += len(queries) * (keys.stop - keys.start)
            elif mask.may_see(span):
                pairs += _seen(mask, queries, keys, num_keys)
    return pairs


def _seen(mask: Mask, queries: Tensor, keys: slice, length: int) -> int:
    keys_at = torch.arange(keys.start, keys.stop)
    sites = Sites(queries[None], keys_at[None], prefix=torch.tensor([length // 2]))
    return int(mask.allowed(sites.grid(1)).expand(1, 1, len(queries), len(keys_at)).sum())


def scores(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Unseen:
    """Return the costs of an attention call for ``declares``; shapes as in ``reference``. Sites count as aligned."""
    rows, num_queries, num_keys = q.shape[:2].numel(), q.shape[2], k.shape[2]
    pair, every = 2 * rows * (q.shape[3] + v.shape[3]), num_queries * num_keys
    mask, full = problem.mask, problem.sites.full

    def hidden(computed: int) -> int:
        return 0 if full else pair * (every - visible_pairs(mask, num_queries, num_keys))

    return Unseen(rows * every * q.element_size(), pair * every, hidden)
