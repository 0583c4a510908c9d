"""Causal attention of the latest positions of a row to all of it, without a mask.

The N queries see all P keys before the first of them, and their own N keys under the plain causal mask: two passes of
torch's fused kernel. With its log-sum-exps L_p and L_o of the scores of a query,

    O = w O_p + (1 - w) O_o        w = e^L_p / (e^L_p + e^L_o) = σ(L_p - L_o)

A mask of N (P + N) booleans, which the kernel converts to numbers, is neither built nor read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.attention import fused_onednn
from qkv.ops.attention.problem import AttentionProblem

FEWEST = 64
"""Queries below which the second pass costs more than a mask."""


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Attention output O (B, H, N, Dv) of the last N of M > N positions, causal, with Dk = Dv; see ``reference``.

    Without gradients. Not for ALiBi, a soft cap, dropout, or an added bias.
    """
    groups, past = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    before, log_before = fused_onednn.forward(q, k[:, :, :past], v[:, :, :past], False, problem.scale)
    own, log_own = fused_onednn.forward(q, k[:, :, past:], v[:, :, past:], True, problem.scale)
    return torch.lerp(own, before, torch.sigmoid(log_before - log_own)[..., None].to(own.dtype))
