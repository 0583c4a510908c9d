"""Residual connections of input x and branch output y, (B, N, D)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.ops.dropout import dropout
from qkv.spec import parts as spec
from qkv.spec.register import implementation, implements


class Residual(nn.Module):
    """Residual connection x + dropout(y) of a branch's input x and output y; base class of other connections.

    In training, y is set to 0 for whole rows with probability ``drop_path`` (stochastic depth, Huang et al. 2016).
    """

    def __init__(self, part: spec.Residual, width: int, dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        self.dropout, self.drop_path = dropout, drop_path
        self._join(part, width)

    def _join(self, part: Any, width: int) -> None:
        """Create the parameters of the connection, such as a gate, for ``width`` features; default: none."""

    def read(self, x: Tensor) -> Tensor:
        """Return the input of the branch: x, or for a reversible connection the second stream."""
        return x

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine input x and output y of the branch, after dropout."""
        return x + y

    def dropped(self, y: Tensor) -> Tensor:
        """In training, apply dropout and drop path to the output y of the branch."""
        if self.training and self.dropout:
            y = dropout(y, self.dropout)
        if self.training and self.drop_path:
            mask = torch.rand(y.shape[0], 1, 1, device=y.device) >= self.drop_path
            y = y * mask / (1 - self.drop_path)
        return y

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.joined(x, self.dropped(y) if self.training else y)


class Multiplied(Residual):
    """Residual connection with a fixed factor: x + factor · y (Granite, IBM 2024)."""

    def _join(self, part: spec.Add, width: int) -> None:
        self.factor = part.factor

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.factor * y


@implements(spec.Add)
def _add(part: spec.Add, width: int, dropout: float, drop_path: float) -> Residual:
    return (Residual if part.factor == 1.0 else Multiplied)(part, width, dropout, drop_path)


@implements(spec.Scaled)
class Scaled(Residual):
    """Residual connection with a learned factor per feature: x + weight ⊙ y (LayerScale, Touvron et al. 2021)."""

    def _join(self, part: spec.Scaled, width: int) -> None:
        self.weight = nn.Parameter(torch.full((width,), part.initial))

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.weight * y


@implements(spec.Gated)
class Gated(Residual):
    """Residual connection with a learned gate: x + tanh(gate) y (Flamingo, Alayrac et al. 2022)."""

    def _join(self, part: spec.Gated, width: int) -> None:
        self.gate = nn.Parameter(torch.tensor(part.initial))

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.gate.tanh() * y


@implements(spec.Resurrecting)
class Resurrecting(Residual):
    """Connection with gates that the input sets: p ⊙ [p > τ] ⊙ y + q ⊙ [q > τ] ⊙ x, p = σ(x), q = 1 - p.

    VisualGPT, Chen et al. 2022.
    """

    def _join(self, part: spec.Resurrecting, width: int) -> None:
        self.threshold = part.threshold

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        p, q = x.sigmoid(), (-x).sigmoid()
        return p * (p > self.threshold) * y + q * (q > self.threshold) * x


@implements(spec.NoResidual)
class NoResidual(Residual):
    """Output y of the branch alone, without a residual connection."""

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return y


@implements(spec.Reversible)
class Reversible(Residual):
    """Reversible connection of two streams: (a, b) -> (b, a + y), with y computed from b (RevNet, Gomez et al. 2017).

    x (B, N, 2 D): both streams; y (B, N, D).
    """

    def read(self, x: Tensor) -> Tensor:
        return x.chunk(2, -1)[1]

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((b, a + y), -1)

    def separated(self, x: Tensor, y: Tensor) -> Tensor:
        """Invert ``joined``: return both streams (B, N, 2 D) before the branch. x: streams after it; y: its output."""
        b, a = x.chunk(2, -1)
        return torch.cat((a - y, b), -1)


def build_residual(part: spec.Residual, width: int, dropout: float = 0.0, drop_path: float = 0.0) -> Residual:
    """Build the residual connection of a spec for ``width`` features."""
    return implementation(part, "qkv.layers")(part, width, dropout, drop_path)
