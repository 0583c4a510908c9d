"""Additive attention in two steps, so that memory is projected only once per sequence, and its implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.additive_attention import blocks, reference
from qkv.ops.linear.choose import linear
from qkv.ops.selection.choices import Choice, choose
from qkv.ops.selection.counting import Unseen, declares

# Above this number of tanh values, the backward pass recomputes them to save memory, which takes about 10 % longer.
_LARGEST = 1 << 26


def additive_keys(memory: Tensor, w_k: Tensor) -> Tensor:
    """Project memory to keys W_k m, once per decoded sequence: memory (B, M, Dk), w_k (A, Dk) -> keys (B, M, A)."""
    return linear(memory, w_k)


def _declared(q: Tensor, keys: Tensor, *arguments: Tensor) -> Unseen:
    return Unseen(q.shape[:2].numel() * keys.shape[1] * keys.element_size())


@declares(_declared)
def additive_scores(q: Tensor, keys: Tensor, w_q: Tensor, v: Tensor) -> Tensor:
    """Compute the scores S_ij = v · tanh(W_q q_i + keys_j).

    q (B, N, Dq), keys (B, M, A) of ``additive_keys``, w_q (A, Dq), v (A) -> (B, N, M).
    """
    q = linear(q, w_q)
    if q.shape[1] > 1 and q.numel() * keys.shape[1] > _LARGEST and q.dtype == keys.dtype:
        reason = "tanh is recomputed in the backward pass to save memory"
        choose("additive attention", "many pairs", lambda: Choice("additive attention", "many pairs", "blocks", reason))
        return blocks.scores(q, keys, v.to(q.dtype))
    choose(
        "additive attention",
        "few pairs",
        lambda: Choice("additive attention", "few pairs", "plain", "all pairs at once"),
    )
    return (q[:, :, None] + keys[:, None]).tanh() @ v.to(torch.promote_types(q.dtype, keys.dtype))


def additive_weights(q: Tensor, keys: Tensor, w_q: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Compute attention weights (B, N, M), softmax of ``additive_scores`` over the first ``lengths`` (B) keys.

    All weights are 0 if a row's memory is empty.
    """
    return reference.normalised(additive_scores(q, keys, w_q, v), lengths)
