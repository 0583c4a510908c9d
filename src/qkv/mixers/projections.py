"""Points of mixers whose queries, keys and values, or head outputs, are concatenated on the last axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context


def offer_projections(branch: Branch, x: Tensor, context: Context, head_dims: Sequence[int], heads: int) -> Tensor:
    """Offer q, k and v (B, H, N, ·), concatenated in x (B, N, ·), to the tap; return x with their replacements.

    head_dims: features of a head of q, k and v.
    """
    if not branch.offers(context.tap, "q", "k", "v"):
        return x
    parts = zip(("q", "k", "v"), x.split([heads * dim for dim in head_dims], -1), head_dims, strict=True)
    return torch.cat([_offer_heads(branch, point, part, context, dim) for point, part, dim in parts], -1)


def offer_outputs(branch: Branch, x: Tensor, context: Context, head_dim: int) -> Tensor:
    """Offer the head outputs (B, H, N, Dv), concatenated in x (B, N, H Dv), to the tap; return x or the replacement."""
    return _offer_heads(branch, "head_outputs", x, context, head_dim)


def _offer_heads(branch: Branch, point: str, x: Tensor, context: Context, head_dim: int) -> Tensor:
    if not branch.offers(context.tap, point):
        return x
    heads = x.unflatten(-1, (-1, head_dim)).transpose(1, 2)
    return branch.offer(context.tap, point, heads).transpose(1, 2).flatten(2)
