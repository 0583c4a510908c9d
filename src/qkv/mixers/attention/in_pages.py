"""Attention to keys and values in pages, read where they are; see ``qkv.state.pages``."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.context import Context
from qkv.ops.native import pages
from qkv.state.pages import Paged


def suits(q: Tensor, context: Context, state: object) -> bool:
    """Return True if ``state`` is in pages, and the kernel of pages supports queries q (B, H, N, Dk) without a tap."""
    return isinstance(state, Paged) and context.tap is None and pages.suits(q)


def attention(q: Tensor, k: Tensor, v: Tensor, terms: pages.ScoreTerms, context: Context, state: Paged) -> Tensor:
    """Store the new keys and values; return the output (B, H, N, Dv), which reads all of them from the pages."""
    arrival = context.arrival
    assert arrival is not None
    table = pages.PageTable(state.room(arrival), state.sizes.positions)
    return pages.attention(q, k, v, table, arrival.past, arrival.after, terms)
