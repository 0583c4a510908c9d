"""Attention with squared ReLU in place of the softmax (GAU, Hua et al. 2022).

    o_i = 1/n_i Σ_j relu(s q_i · k_j)² v_j        j visible to i, n_i: their number

q (B, H, N, Dk)   k (B, H, M, Dk)   v (B, H, M, Dv)   o (B, H, N, Dv)
"""

from __future__ import annotations

from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.visible import scores
from qkv.ops.selection.counting import declares


def squared_relu(x: Tensor) -> Tensor:
    """Compute relu(x)²."""
    return x.relu().square()


@declares(scores)
def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute o for the mask, positions and scale of ``problem``; the output of a query that sees no key is 0."""
    products, seen = _products(q, k, problem)
    return (products @ v) / seen


def weights(q: Tensor, k: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute the weights relu(s q_i · k_j)² / n_i of the values, (B, H, N, M), 0 where a key is hidden."""
    products, seen = _products(q, k, problem)
    return products / seen


def _products(q: Tensor, k: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Return (relu(s q_i · k_j)² (B, H, N, M), n_i (…, N, 1), at least 1)."""
    visible = problem.sites.visible(problem.mask, q.shape[1])
    products = squared_relu((q * problem.scale) @ k.mT).masked_fill(~visible, 0.0)
    return products, visible.sum(-1, keepdim=True).clamp(min=1)
