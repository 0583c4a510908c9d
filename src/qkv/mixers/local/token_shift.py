"""Token shift: feature groups from earlier positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points
from qkv.ops.convolution import same_document
from qkv.spec import branches as spec
from qkv.spec.register import implements
from qkv.state.tail import extended


@implements(spec.TokenShift)
class TokenShift(Branch):
    """Token shift: y_i = W concat_g(x_{i-g}[group g]) + b over G feature groups; inputs before the start are 0.

    Causal form of S²-MLP (Yu et al. 2021). State: the last G - 1 inputs, (B, G - 1, D).
    """

    rewindable = False

    def __init__(self, part: spec.TokenShift, width: int):
        super().__init__(part, width)
        self.groups = part.groups
        self.output = Linear(width, width)

    def points(self) -> Points:
        return {"shifted": "features from earlier positions, group by group (B, N, D)"}

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.output.weight.detach().new_zeros(batch, self.groups - 1, self.width)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail = x.new_zeros(x.shape[0], self.groups - 1, self.width) if state is None else state
        window, tail = extended(tail, x, context.lengths)
        past, size = self.groups - 1, self.width // self.groups
        shifted = []
        for g in range(self.groups):
            part = window[:, past - g : past - g + x.shape[1], g * size : (g + 1) * size]
            shifted.append(part if context.segments is None else part * same_document(context.segments, g)[..., None])
        features = self.offer(context.tap, "shifted", torch.cat(shifted, -1))
        return self.output(features), None if state is None else tail

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * (self.groups - 1) * self.width * self.output.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
