"""Norms of a self-contained model, (…, D) -> (…, D)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.interop.remote.pieces.common import PARTS, Part, at_least_single


class LayerNorm(nn.Module):
    """Layer norm (x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 2016)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if part["bias"] else None
        self.eps = part["eps"]

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """RMS norm x / sqrt(mean(x²) + eps) * weight (Zhang & Sennrich 2019), or * (1 + weight) if zero-centred."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if part["weight"] else None
        self.eps, self.first = part["eps"], 1.0 if part["zero_centred"] else 0.0

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_single(x.dtype))
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (y if self.weight is None else y * (self.first + self.weight.to(wide.dtype))).to(x.dtype)


class BatchNorm(nn.Module):
    """Batch norm (x - mean) / sqrt(var + eps) * weight + bias with the training statistics (Ioffe & Szegedy 2015)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.eps = part["eps"]

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.running_mean) * torch.rsqrt(self.running_var + self.eps) * self.weight + self.bias


class NoNorm(nn.Module):
    """Identity, for parts without a norm."""

    def __init__(self, part: Part, width: int):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


PARTS.update(
    {"norm.layer_norm": LayerNorm, "norm.rms_norm": RMSNorm, "norm.batch_norm": BatchNorm, "norm.none": NoNorm}
)
