"""Attention whose scores and weights a tap may read and replace."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.ops.attention import reference
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem

Attend = Callable[[Tensor, Tensor, Tensor, AttentionProblem], Tensor]
"""Implementation of attention: (q, k, v, problem) -> (B, H, N, Dv)."""


def attend(
    branch: Branch,
    qkv: tuple[Tensor, Tensor, Tensor],
    problem: AttentionProblem,
    context: Context,
    compute: Attend = attention,
) -> Tensor:
    """Compute attention by ``compute(q, k, v, problem)``, and offer scores and weights to the tap.

    Return the output (B, H, N, Dv). If the tap receives scores or weights (B, H, N, M), the reference computes them; if
    the tap replaces them, the output is computed from the replacement. q (B, H, N, Dk), k (B, G, M, Dk),
    v (B, G, M, Dv).
    """
    weights = replaced_weights(branch, *qkv[:2], problem, context)
    return compute(*qkv, problem) if weights is None else reference.mix(weights, qkv[2], problem)


def replaced_weights(
    branch: Branch, q: Tensor, k: Tensor, problem: AttentionProblem, context: Context
) -> Tensor | None:
    """Offer scores and weights to the tap; return the weights (B, H, N, M) if it replaces either, else None."""
    tap = context.tap
    if not branch.offers(tap, "scores", "weights"):
        return None
    scores = branch.offer_computed(tap, "scores", lambda: reference.scores(q, k, problem))
    used = reference.scores(q, k, problem) if scores is None else scores
    weights = branch.offer_computed(tap, "weights", lambda: reference.normalised(used, problem).to(q.dtype))
    if weights is None and scores is not None:
        return reference.normalised(scores, problem).to(q.dtype)
    return weights
