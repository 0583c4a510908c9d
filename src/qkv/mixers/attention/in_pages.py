"""Attention that reads a paged KV cache in place; see ``qkv.state.pages``."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.context import Context
from qkv.ops.native import pages
from qkv.state.pages import Paged


def suits(q: Tensor, context: Context, state: object) -> bool:
    """Return True if ``state`` is paged, there is no tap, and the kernel supports the queries q (B, H, N, Dk)."""
    return isinstance(state, Paged) and context.tap is None and pages.suits(q)


def attention(q: Tensor, k: Tensor, v: Tensor, terms: pages.ScoreTerms, context: Context, state: Paged) -> Tensor:
    """Write the new keys and values to the pages; return the output (B, H, N, Dv) of attention to all pages."""
    arrival = context.arrival
    assert arrival is not None
    table = pages.PageTable(state.room(arrival), state.sizes.positions)
    return pages.attention(q, k, v, table, arrival.past, arrival.after, terms)
