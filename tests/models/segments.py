"""Vectors, and the blocks of a segmentation applied to them."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.models.transformer import Transformer


def through(m: Transformer, x: Tensor) -> Tensor:
    """Vectors after blocks and norm of vectors x (B, N, D)."""
    assert m.segmentation is not None
    return m.segmentation(x, Context(torch.arange(x.shape[1])[None]), m)[0]


def vectors(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
