"""Mixture of experts: positions are sorted by expert, and each expert computes all of its positions in one call.

    y_t = Σ_i w_ti f_e(x_t), e = chosen_ti

    x (T, D)   chosen (T, k)   w (T, k)   y (T, D)

Every position reaches all experts that it chose, however many chose the same (no capacity, no dropped tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qkv.ops.untraced import untraced

Expert = Callable[[Tensor], Tensor]
"""Function of the vectors (n, D) that chose it, -> (n, D)."""


@untraced("the number of positions per expert is read")
def mixed(x: Tensor, chosen: Tensor, weights: Tensor, experts: Sequence[Expert]) -> Tensor:
    """Output y (T, D): for each position, the weighted sum of the experts that it chose."""
    count, k = chosen.shape
    order = chosen.flatten().argsort(stable=True)
    pieces = x.index_select(0, order // k).split(_sizes(chosen, len(experts)))
    # Without a gradient, experts that nobody chose are not called; with one, their gradient is 0 and not absent.
    found = [f(piece) for f, piece in zip(experts, pieces, strict=True) if piece.shape[0] or torch.is_grad_enabled()]
    out = torch.cat(found) if found else torch.zeros_like(x)
    out = out.index_select(0, order.argsort()).unflatten(0, (count, k))
    return (weights.to(out.dtype)[..., None] * out).sum(1)


def _sizes(chosen: Tensor, num_experts: int) -> list[int]:
    """Number of positions of each expert; without values, as if the load were even."""
    if chosen.is_meta:
        each, rest = divmod(chosen.numel(), num_experts)
        return [each + (e < rest) for e in range(num_experts)]
    return torch.bincount(chosen.flatten(), minlength=num_experts).tolist()


def load(chosen: Tensor, num_experts: int, valid: Tensor | None = None) -> Tensor:
    """Number of unpadded positions that chose each expert, (E,) fp32. chosen (B, N, k); valid (B, N) or None: all."""
    real = torch.ones_like(chosen) if valid is None else valid[..., None].expand_as(chosen)
    counts = torch.zeros(num_experts, device=chosen.device)
    return counts.index_add(0, chosen.flatten(), real.flatten().to(counts.dtype))


def balance_loss(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    """Loss E Σ_e f_e p_e of a batch, 1 if the load is even (Fedus et al. 2021).

    f_e: share of expert e in the choices; p_e: mean over positions of its share in the scores (B, N, E). Padding, where
    ``valid`` (B, N) is false, does not count.
    """
    num_experts = scores.shape[-1]
    chosen_by = load(chosen, num_experts, valid).to(scores.dtype)
    shares = scores / scores.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    real = torch.ones_like(shares[..., :1]) if valid is None else valid[..., None].to(shares.dtype)
    mean = (shares * real).flatten(0, -2).sum(0) / real.sum().clamp(min=1)
    return num_experts * (chosen_by / chosen_by.sum().clamp(min=1) * mean).sum()
