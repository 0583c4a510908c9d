"""Bidirectional linear attention: every position attends to all positions of its row."""

from __future__ import annotations

from torch import Tensor

from qkv.ops.linear_attention.reference import mean
from qkv.ops.selection.counting import Unseen, declares


def _stored(q: Tensor, k: Tensor, v: Tensor) -> Unseen:
    return Unseen(q.shape[:2].numel() * q.shape[2] * k.shape[2] * q.element_size())


@declares(_stored)
def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute o_i = φ(q_i) Σ_j φ(k_j)^T v_j / (φ(q_i) · Σ_j φ(k_j)).

    ``q``: φ(q) (B, H, N, Dk), ``k``: φ(k) (B, H, M, Dk), v (B, H, M, Dv) -> (B, H, N, Dv). Keys must be 0 at padding,
    where they have no effect.
    """
    return mean(q @ (k.mT @ v), (q * k.sum(2, keepdim=True)).sum(-1))
