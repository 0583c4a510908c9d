"""Convolution of the Conformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops.convolution import taps
from qkv.spec.mixers import gated_convolution as spec
from qkv.spec.register import implements


@implements(spec.ConformerConvolution)
class ConformerConvolution(Branch):
    """Convolution of the Conformer (Gulati et al. 2020); see the spec for the equation.

        x (B, N, D) ─ input ─┬─ value (B, N, D) ─┐
                             └─ gate (B, N, D) ─ σ ⊙ ─ convolution ─ norm ─ φ ─ output ─ (B, N, D)

    weight (D, K): the taps of each feature, that of the latest position first. Padding and other documents are read as
    0, and the batch norm counts real positions only. Bidirectional and stateless.
    """

    causal = False
    rewindable = False

    def __init__(self, part: spec.ConformerConvolution, width: int):
        super().__init__(part, width)
        self.part = part
        self.input = Linear(width, 2 * width, bias=part.bias)
        self.weight = nn.Parameter(part.kernel_size**-0.5 * torch.randn(width, part.kernel_size))
        self.bias = nn.Parameter(self.weight.new_zeros(width)) if part.bias else None
        self.norm, self.activation = build_norm(part.norm, width), ACTIVATIONS[part.activation]
        self.output = Linear(width, width, bias=part.bias)

    def layouts(self) -> Layouts:
        shared = {"input": matrix(value=self.width, gate=self.width), "weight": WHOLE}
        return shared if self.bias is None else {**shared, "bias": WHOLE}

    def points(self) -> Points:
        return standard("gate")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        value, gate = self.input(x).chunk(2, -1)
        value = value * self.offer(context.tap, "gate", gate).sigmoid()
        if context.valid is not None:
            value = value.masked_fill(~context.valid[..., None], 0.0)
        y = self.activation(self.norm(self._convolved(value, context), context))
        return self.output(y), state

    def _convolved(self, x: Tensor, context: Context) -> Tensor:
        if not x.shape[1]:
            return x
        before = self.part.kernel_size // 2
        after = self.part.kernel_size - 1 - before
        if context.segments is None:
            filters = self.weight.flip(-1)[:, None].to(x.dtype)
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return F.conv1d(F.pad(x.mT, (before, after)), filters, bias, groups=self.width).mT
        near = taps(F.pad(x, (0, 0, before, after)), self.part.kernel_size, 1, context.segments, after)
        y = (near.unflatten(-1, (-1, self.width)) * self.weight.T).sum(-2)
        return y if self.bias is None else y + self.bias

    def ending(self) -> nn.Module:
        return self.output
