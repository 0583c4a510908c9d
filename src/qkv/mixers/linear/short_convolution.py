"""Depthwise causal convolution, which some mixers apply before their state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Declared, Layouts
from qkv.ops.convolution import same_document
from qkv.state.tail import extended


class DepthwiseConvolution(Declared):
    """Depthwise causal convolution: (B, N, F) -> (B, N, F), y_i = Σ_t w_t ⊙ x_{i-t} + b, t < K.

    weight (F, K): w, latest tap first. State: the last K - 1 inputs, (B, K - 1, F).
    """

    def __init__(self, features: int, kernel_size: int, bias: bool = True):
        super().__init__()
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(features, kernel_size))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None
        nn.init.uniform_(self.weight, -(kernel_size**-0.5), kernel_size**-0.5)

    def layouts(self) -> Layouts:
        return {"weight": WHOLE}

    def init_state(self, batch: int) -> Tensor:
        """Return the state of ``batch`` rows before their first position: zeros."""
        return self.weight.detach().new_zeros(batch, self.kernel_size - 1, len(self.weight))

    def forward(self, x: Tensor, context: Context, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (output, last K - 1 unpadded inputs). ``tail``: these inputs of the previous call; None: zeros."""
        count, before = x.shape[1], self.kernel_size - 1
        window, tail = extended(self.init_state(len(x)).to(x.dtype) if tail is None else tail, x, context.lengths)
        y = torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)
        for t, weight in enumerate(self.weight.unbind(1)):
            tap = window[:, before - t : before - t + count]
            if t and context.segments is not None:
                tap = tap * same_document(context.segments, t)[..., None]
            y = torch.addcmul(y, tap, weight)
        return y, tail


class ShortConvolution(DepthwiseConvolution):
    """Depthwise causal convolution followed by SiLU: silu(Σ_t w_t ⊙ x_{i-t} + b), t < K."""

    def forward(self, x: Tensor, context: Context, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        y, tail = super().forward(x, context, tail)
        return F.silu(y), tail
