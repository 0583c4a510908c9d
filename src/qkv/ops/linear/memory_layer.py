"""Attention to learned key-value slots (Sukhbaatar et al. 2019, Geva et al. 2021).

p = φ(q K^T), φ a softmax over q K^T / √k or an activation          y = Σ_h p_h V_h

q (…, H, k)   K (H, S, k)   V (D, H·S), head by head   p (…, H, S)   y (…, D)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from qkv.ops.linear.choose import linear


def weights(q: Tensor, keys: Tensor, activation: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Compute the weights p (…, H, S) of the slots. ``activation``: applied to the scores; None for a softmax."""
    scores = linear(q, keys[0]) if keys.shape[0] == 1 else (q.flatten(0, -3).transpose(0, 1) @ keys.mT).transpose(0, 1)
    scores = scores.reshape(*q.shape[:-1], keys.shape[1])
    return (scores * q.shape[-1] ** -0.5).softmax(-1) if activation is None else activation(scores)


def memory(weights: Tensor, values: Tensor) -> Tensor:
    """Compute the output y (…, D), the sum of the slots' ``values`` (D, H·S), weighted by p (…, H, S)."""
    return linear(weights.flatten(-2), values)
