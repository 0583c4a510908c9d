"""Mixture of experts: positions are sorted by expert, and each expert processes all of its positions in one call.

    y_t = Σ_i w_ti f_e(x_t), e = chosen_ti

    x (T, D)   chosen (T, k)   w (T, k)   y (T, D)

Each position is processed by all of its chosen experts: there is no expert capacity, and no token is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qkv.ops.selection.untraced import untraced

Expert = Callable[[Tensor], Tensor]
"""Function of an expert: vectors (n, D) of the positions that chose it -> (n, D)."""


@untraced("the number of positions per expert is read")
def mixed(x: Tensor, chosen: Tensor, weights: Tensor, experts: Sequence[Expert]) -> Tensor:
    """Compute y (T, D): for each position, the weighted sum of the outputs of its chosen experts."""
    order = chosen.flatten().argsort(stable=True)
    out = _applied(x.index_select(0, order // chosen.shape[1]), order, chosen, experts)
    return (weights.to(out.dtype)[..., None] * out).sum(1)


@untraced("the number of positions per expert is read")
def mixed_of_inputs(x: Tensor, chosen: Tensor, weights: Tensor, experts: Sequence[Expert]) -> Tensor:
    """Compute y (T, D), y_t = Σ_i f_e(w_ti x_t), e = chosen_ti: weights multiply what the experts read (Llama 4, 2025).

    Shapes as above.
    """
    order = chosen.flatten().argsort(stable=True)
    inputs = (weights.to(x.dtype)[..., None] * x[:, None]).flatten(0, 1)
    return _applied(inputs.index_select(0, order), order, chosen, experts).sum(1)


def _applied(inputs: Tensor, order: Tensor, chosen: Tensor, experts: Sequence[Expert]) -> Tensor:
    """Compute the outputs (T, k, D) of the experts for ``inputs`` (T k, D), which are in the order of their experts."""
    pieces = inputs.split(_sizes(chosen, len(experts)))
    # Experts without positions are called only with gradients enabled, so that their gradients are 0 and not None.
    outputs = [f(piece) for f, piece in zip(experts, pieces, strict=True) if piece.shape[0] or torch.is_grad_enabled()]
    out = torch.cat(outputs) if outputs else torch.zeros_like(inputs)
    return out.index_select(0, order.argsort()).unflatten(0, chosen.shape)


def _sizes(chosen: Tensor, num_experts: int) -> list[int]:
    """Count the positions of each expert; for meta tensors, assume an even load."""
    if chosen.is_meta:
        each, rest = divmod(chosen.numel(), num_experts)
        return [each + (e < rest) for e in range(num_experts)]
    return torch.bincount(chosen.flatten(), minlength=num_experts).tolist()


def within_groups(scores: Tensor, groups: int, count: int, best: int) -> Tensor:
    """Mask scores (..., E): set experts outside of the ``count`` best groups to -inf.

    The experts are divided into ``groups`` groups of consecutive experts. Groups are ranked by the sum of their
    ``best`` largest scores (DeepSeek-V2 and V3, 2024).
    """
    grouped = scores.unflatten(-1, (groups, -1))
    chosen = grouped.topk(best).values.sum(-1).topk(count).indices
    inside = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=scores.device).scatter(-1, chosen, True)
    return grouped.masked_fill(~inside[..., None], -torch.inf).flatten(-2)


def sparse_mixer(logits: Tensor, chosen: Tensor, jitter: float) -> Tensor:
    """Compute the weights (..., k) of chosen experts (..., k), in descending order of their logits (..., E).

    The weight of e is its softmax over the logits z of experts that are not chosen before it, and near:
    z_e - z ≤ 2 jitter max(|z|, z_e) (Liu et al. 2023, Phi-3.5-MoE 2024).
    """
    weights, masked = [], logits
    for i in range(chosen.shape[-1]):
        one = chosen[..., i : i + 1]
        best = logits.gather(-1, one)
        far = (best - logits) / logits.abs().maximum(best) > 2 * jitter
        weights.append(masked.masked_fill(far, -torch.inf).softmax(-1).gather(-1, one))
        masked = masked.scatter(-1, one, -torch.inf)
    return torch.cat(weights, -1)


def load(chosen: Tensor, num_experts: int, valid: Tensor | None = None) -> Tensor:
    """Count the unpadded positions that chose each expert, (E,) fp32. chosen (B, N, k); valid (B, N) or None: all."""
    real = torch.ones_like(chosen) if valid is None else valid[..., None].expand_as(chosen)
    counts = torch.zeros(num_experts, device=chosen.device)
    return counts.index_add(0, chosen.flatten(), real.flatten().to(counts.dtype))


def balance_loss(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    """Compute the balance loss E Σ_e f_e p_e of a batch, 1 if the load is even (Fedus et al. 2021).

    f_e: fraction of choices for expert e; p_e: mean over positions of the fraction of the scores (B, N, E) for expert
    e. Padding, where ``valid`` (B, N) is False, is not counted.
    """
    num_experts = scores.shape[-1]
    chosen_by = load(chosen, num_experts, valid).to(scores.dtype)
    shares = scores / scores.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    real = torch.ones_like(shares[..., :1]) if valid is None else valid[..., None].to(shares.dtype)
    mean = (shares * real).flatten(0, -2).sum(0) / real.sum().clamp(min=1)
    return num_experts * (chosen_by / chosen_by.sum().clamp(min=1) * mean).sum()
