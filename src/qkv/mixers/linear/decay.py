"""Initial decays of matrix states whose decay exp(-λ softplus(step)) depends on the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_RATES = 1.0, 16.0
"""Bounds of the initial rates λ."""
_STEPS = 1e-3, 1e-1
"""Bounds of the initial steps."""


def initial_log_rates(num_heads: int) -> Tensor:
    """Return logarithms (H,) of rates λ drawn uniformly between 1 and 16 (Dao & Gu 2024)."""
    return torch.empty(num_heads).uniform_(*_RATES).log()


def initial_step_bias(num_heads: int) -> Tensor:
    """Return biases (H,) whose softplus, the step, is log-uniform between 0.001 and 0.1 (Gu & Dao 2023).

    A head then forgets over 1 / (λ step) positions, from less than one to a thousand. Without this bias, a step is
    about 0.7 and every head forgets at once.
    """
    low, high = (math.log(step) for step in _STEPS)
    steps = (torch.rand(num_heads) * (high - low) + low).exp()
    return steps + torch.log(-torch.expm1(-steps))
