"""Attention scores and weights computed for taps."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.ops.attention import reference
from qkv.ops.attention.problem import AttentionProblem


def observe(branch: Branch, q: Tensor, k: Tensor, problem: AttentionProblem, context: Context) -> None:
    """Pass attention scores and weights (B, H, N, M) to the tap, if it receives them.

    The reference implementation computes them. q (B, H, N, Dk), k (B, G, M, Dk).
    """
    if context.tap is not None:
        branch.observed(context, "scores", lambda: reference.scores(q, k, problem))
        branch.observed(context, "weights", lambda: reference.weights(q, k, problem))
