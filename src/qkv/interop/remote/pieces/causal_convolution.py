"""Causal, dilated convolution of a self-contained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.interop.remote.pieces.common import PARTS, Part, Place, only_real


class CausalConvolution(nn.Module):
    """Causal convolution y_i = Σ_t W_t x_{i - t·dilation} + b, gated by a sigmoid half (van den Oord et al. 2016). The
    weight of the latest input comes first.
    """

    def __init__(self, part: Part, width: int):
        super().__init__()
        outputs = 2 * width if part["gated"] else width
        self.part = part
        self.weight = nn.Parameter(torch.zeros(outputs, part["kernel_size"] * width))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, place: Place) -> Tensor:
        x, step = only_real(x, place), self.part["dilation"]
        taps = [F.pad(x, (0, 0, t * step, 0))[:, : x.shape[1]] for t in range(self.part["kernel_size"])]
        y = F.linear(torch.cat(taps, -1), self.weight, self.bias)
        return F.glu(y) if self.part["gated"] else y


PARTS["branch.causal_convolution"] = CausalConvolution
