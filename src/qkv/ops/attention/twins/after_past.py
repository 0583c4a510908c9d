"""Causal attention of a chunk of new positions to all earlier positions and to itself, without a mask tensor.

The N queries attend to the P past keys without a mask, and to the N new keys under the causal mask, in two calls of
torch's fused kernel. The kernel returns outputs O_p and O_o, and log-sum-exps L_p and L_o of each query's scores:

    O = w O_p + (1 - w) O_o        w = e^L_p / (e^L_p + e^L_o) = σ(L_p - L_o)

This avoids a mask of N (P + N) booleans, which the kernel would convert to floating point.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import fused_onednn

FEWEST = 64
"""Smallest number of queries for which two passes take less time than one pass with a mask."""


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute causal attention O (B, H, N, Dv) of the last N of M > N positions, for Dk = Dv; see ``reference``.

    Without gradients. Not for ALiBi, a soft cap, dropout, or an added bias.
    """
    groups, past = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    before, log_before = fused_onednn.forward(q, k[:, :, :past], v[:, :, :past], False, problem.scale)
    recent, log_own = fused_onednn.forward(q, k[:, :, past:], v[:, :, past:], True, problem.scale)
    return torch.lerp(recent, before, torch.sigmoid(log_before - log_own)[..., None].to(recent.dtype))
