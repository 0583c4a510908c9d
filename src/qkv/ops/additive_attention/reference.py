"""Reference implementation of additive attention (Bahdanau et al. 2015).

    S_ij = v · tanh(W_q q_i + W_k m_j)        P = softmax_j(S) over unpadded j

    q (B, N, Dq)   m (B, M, Dk)   W_q (A, Dq)   W_k (A, Dk)   v (A)   S, P (B, N, M)

A row with an empty memory has weights of 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

Parameters = tuple[Tensor, Tensor, Tensor]
"""W_q, W_k, v."""


def scores(q: Tensor, memory: Tensor, parameters: Parameters) -> Tensor:
    """Compute additive attention scores S (B, N, M). ``parameters``: (W_q, W_k, v), see the module docstring."""
    w_q, w_k, v = parameters
    return ((q @ w_q.t())[:, :, None] + (memory @ w_k.t())[:, None]).tanh() @ v


def normalised(s: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Compute attention weights P (B, N, M): softmax of scores S over the first ``lengths`` (B) keys; None for all."""
    if lengths is None:
        return s.softmax(-1)
    real = (torch.arange(s.shape[2], device=s.device) < lengths[:, None])[:, None]
    # A row with only -inf would give NaN, in the gradient too.
    blind = (lengths == 0)[:, None, None]
    return s.masked_fill(~(real | blind), -torch.inf).softmax(-1).masked_fill(blind, 0.0)


def weights(q: Tensor, memory: Tensor, parameters: Parameters, lengths: Tensor | None = None) -> Tensor:
    """Compute attention weights P (B, N, M) over the first ``lengths`` (B) vectors of the memory; None for all."""
    return normalised(scores(q, memory, parameters), lengths)
