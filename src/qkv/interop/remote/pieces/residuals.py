"""Residual connections of a self-contained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.interop.remote.pieces.common import PARTS, Part


class Add(nn.Module):
    """Residual connection x + y of the residual stream x and a branch's output y."""

    def __init__(self, part: Part, width: int):
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Scaled(nn.Module):
    """Residual connection x + weight ⊙ y, with learned weights per feature (LayerScale, Touvron et al. 2021)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), part["initial"]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.weight * y


class Gated(nn.Module):
    """Residual connection x + tanh(gate) y, with a learned scalar gate (Alayrac et al. 2022)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(part["initial"]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.tanh(self.gate) * y


class Replace(nn.Module):
    """No residual connection: the branch's output y alone."""

    def __init__(self, part: Part, width: int):
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y


PARTS.update({"residual.add": Add, "residual.scaled": Scaled, "residual.gated": Gated, "residual.none": Replace})
