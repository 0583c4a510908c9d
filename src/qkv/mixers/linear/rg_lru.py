"""RG-LRU: a recurrence of each feature, with gates that depend on the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Declared, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.mixers.linear.short_convolution import DepthwiseConvolution
from qkv.ops.matrix_state.gated import gated_scan
from qkv.spec.mixers import mamba as spec
from qkv.spec.register import implements

_SHARPNESS = 8.0
"""Constant factor of the exponent of the decay, as published."""
_DECAYS = 0.9, 0.999
"""Bounds of the initial decays at open gates."""
_LEAST = 2.5e-7
"""Value of 1 - a² below which the derivative of its root stays the same, as published."""


class BlockDiagonal(Declared):
    """Linear map with a block-diagonal matrix, (B, N, E) -> (B, N, E); weight (H, E / H, E / H), rows are inputs."""

    def __init__(self, features: int, blocks: int):
        super().__init__()
        size = features // blocks
        self.weight = nn.Parameter(torch.randn(blocks, size, size) * size**-0.5)
        self.bias = nn.Parameter(torch.zeros(blocks, size))

    def layouts(self) -> Layouts:
        return {"weight": WHOLE, "bias": WHOLE}

    def forward(self, x: Tensor) -> Tensor:
        blocks = x.unflatten(-1, self.bias.shape)
        return (torch.einsum("bnhi,hij->bnhj", blocks, self.weight) + self.bias).flatten(-2)


@implements(spec.RGLRU)
class RGLRU(Branch):
    """RG-LRU (De et al. 2024); see the spec for the equations.

        u (B, N, D) ─┬─ input ─ convolution ─ x (B, N, E) ─┬──────────────────────── h ─ ⊙ ─ output ─ (B, N, D)
                     │                                     └─ input_gate, decay_gate ─┘   │
                     └─ gate (B, N, E) ─ φ ───────────────────────────────────────────────┘

    State: the last K - 1 inputs of the convolution, and h (B, E).
    """

    rewindable = False

    def __init__(self, part: spec.RGLRU, width: int):
        super().__init__(part, width)
        self.part, self.inner = part, part.hidden_at(width)
        self.input = Linear(width, self.inner)
        self.gate = Linear(width, self.inner)
        self.convolution = DepthwiseConvolution(self.inner, part.kernel_size)
        self.input_gate = BlockDiagonal(self.inner, part.num_heads)
        self.decay_gate = BlockDiagonal(self.inner, part.num_heads)
        low, high = (-math.log(decay) / _SHARPNESS for decay in _DECAYS)
        self.rate = nn.Parameter(torch.empty(self.inner).uniform_(high, low).expm1().log())
        self.activation = ACTIVATIONS[part.activation]
        self.output = Linear(self.inner, width)

    def layouts(self) -> Layouts:
        return {"input": matrix(value=self.inner), "gate": matrix(gate=self.inner)}

    def points(self) -> Points:
        decay = {"feature_decay": "logarithm of the decay of each feature (B, N, E)"}
        return {**standard("gate"), **decay, **standard("activation")}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        return self.convolution.init_state(batch), self.input.weight.detach().new_zeros(batch, self.inner)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail, before = (None, None) if state is None else state
        gate = self.offer(context.tap, "gate", self.gate(x))
        value, tail = self.convolution(self.input(x), context, tail)
        log_decay = -_SHARPNESS * F.softplus(self.rate) * self.decay_gate(value).sigmoid()
        log_decay = self.offer(context.tap, "feature_decay", log_decay)
        scale = _bounded_root(-torch.expm1(2 * log_decay))
        first = (context.positions == 0)[..., None]
        value = value * self.input_gate(value).sigmoid() * scale.masked_fill(first, 1.0)
        out, last = gated_scan(value, log_decay, before, context.valid, context.document_starts)
        out = self.offer(context.tap, "activation", out * self.activation(gate))
        return self.output(out), None if state is None else (tail, last)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.inner * self.part.kernel_size * self.input.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output


def _bounded_root(x: Tensor) -> Tensor:
    """Return √x, whose derivative is 1 / (2 √max(x, ``_LEAST``))."""
    differentiable = torch.where(x > _LEAST, x.clamp(min=_LEAST).sqrt(), x / (2 * _LEAST**0.5))
    return differentiable + (x.sqrt() - differentiable).detach()
