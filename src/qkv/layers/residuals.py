"""How what a branch computed joins what went into it. x, y (B, N, D)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.ops.dropout import dropout
from qkv.spec import parts as spec


class Residual(nn.Module):
    """x + dropout(y), with a chance ``drop_path`` in training that a whole row of y is left out (Huang et al. 2016)."""

    def __init__(self, part: spec.Residual, width: int, dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        self.dropout, self.drop_path = dropout, drop_path
        self._join(part, width)

    def _join(self, part: Any, width: int) -> None:
        """Make the parameters."""

    def read(self, x: Tensor) -> Tensor:
        """What the branch reads of x."""
        return x

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        """The two in one, without dropout."""
        return x + y

    def dropped(self, y: Tensor) -> Tensor:
        """What of y joins x in training."""
        if self.training and self.dropout:
            y = dropout(y, self.dropout)
        if self.training and self.drop_path:
            kept = torch.rand(y.shape[0], 1, 1, device=y.device) >= self.drop_path
            y = y * kept / (1 - self.drop_path)
        return y

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.joined(x, self.dropped(y))


class Scaled(Residual):
    """x + weight ⊙ y (LayerScale, Touvron et al. 2021)."""

    def _join(self, part: spec.Scaled, width: int) -> None:
        self.weight = nn.Parameter(torch.full((width,), part.initial))

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.weight * y


class Gated(Residual):
    """x + tanh(gate) y (Flamingo, Alayrac et al. 2022)."""

    def _join(self, part: spec.Gated, width: int) -> None:
        self.gate = nn.Parameter(torch.tensor(part.initial))

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.gate.tanh() * y


class NoResidual(Residual):
    """y."""

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class Reversible(Residual):
    """(a, b) -> (b, a + y), y computed of b. x (B, N, 2 D) are both streams side by side, y (B, N, D) (Gomez et al. 2017)."""

    def read(self, x: Tensor) -> Tensor:
        return x.chunk(2, -1)[1]

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((b, a + y), -1)

    def separated(self, x: Tensor, y: Tensor) -> Tensor:
        """What ``joined`` made x of."""
        b, a = x.chunk(2, -1)
        return torch.cat((a - y, b), -1)


RESIDUALS: dict[type[spec.Residual], Callable[..., Residual]] = {
    spec.Add: Residual,
    spec.Scaled: Scaled,
    spec.Gated: Gated,
    spec.NoResidual: NoResidual,
    spec.Reversible: Reversible,
}


def build_residual(part: spec.Residual, width: int, dropout: float = 0.0, drop_path: float = 0.0) -> Residual:
    """The module of a residual's spec."""
    return RESIDUALS[type(part)](part, width, dropout, drop_path)
