"""Activation functions by name. ``quick_gelu`` is x σ(1.702 x) (Hendrycks & Gimpel 2016); ``xielu`` is learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.ops.activation import Activation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": Activation("gelu", F.gelu),
    "gelu_tanh": Activation("gelu_tanh", partial(F.gelu, approximate="tanh")),
    "silu": Activation("silu", F.silu),
    "quick_gelu": Activation("quick_gelu", lambda x: F.silu(1.702 * x) / 1.702),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class XIELU(nn.Module):
    """Expanded integral of the ELU (Huang & Schlag 2024), applied to each element x.

    a x² + x/2 above 0, else b (e^min(x, -1e-6) - 1 - x) + x/2, with a = softplus(positive) and
    b = 1/2 + softplus(negative), both learned and initially 0.8.
    """

    SLOPE, LARGEST = 0.5, -1e-6
    """Slope at 0, and the largest argument of e^x - 1."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Parameter(torch.tensor([0.8]).expm1().log())
        self.negative = nn.Parameter(torch.tensor([0.8 - self.SLOPE]).expm1().log())

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.softplus(self.positive), self.SLOPE + F.softplus(self.negative)
        below = b * (x.clamp(max=self.LARGEST).expm1() - x)
        return torch.where(x > 0, a * x.square(), below) + self.SLOPE * x


LEARNED: dict[str, type[nn.Module]] = {"xielu": XIELU}
"""Modules of the activation functions with learned parameters, by name."""


def build_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function of that name; if it has learned parameters, a new module."""
    return LEARNED[name]() if name in LEARNED else ACTIVATIONS[name]
