"""``MarkedTokens``: token ids with further marks of each token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from qkv.layers.signal import Signal


@dataclass(frozen=True)
class MarkedTokens(Signal):
    """Rows of tokens. marks (B, N, K): K whole numbers of each token, such as its box on a page; default: all 0."""

    marks: Tensor | None = None
