"""Causal dilated convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State, implements
from qkv.layers.context import Context
from qkv.ops.convolution import taps
from qkv.ops.linear.choose import linear
from qkv.spec import branches as spec
from qkv.state.kinds import extended


@implements(spec.CausalConvolution)
class CausalConvolution(Branch):
    """y_i = Σ_t W_t x_{i - t·dilation} + b, gated: a ⊙ σ(g) of the two halves (WaveNet 2016; Dauphin et al. 2017).

    weight (E, K·D) with the latest tap first, E = 2 D if gated. State: the last (K - 1)·dilation inputs.
    """

    rewindable = False

    def __init__(self, part: spec.CausalConvolution, width: int):
        super().__init__(part, width)
        self.part = part
        outputs = 2 * width if part.gated else width
        self.weight = nn.Parameter(torch.empty(outputs, part.kernel_size * width))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 1 / (K·D)): the output's variance is that of the input."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.weight.detach().new_zeros(batch, self.part.tail, self.width)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail = x.new_zeros(x.shape[0], self.part.tail, self.width) if state is None else state
        window, tail = extended(tail, x, context.lengths)
        y = linear(taps(window, self.part.kernel_size, self.part.dilation, context.segments), self.weight, self.bias)
        if self.part.gated:
            value, gate = y.chunk(2, -1)
            y = value * gate.sigmoid()
        return y, None if state is None else tail

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.part.tail * self.width * self.weight.element_size()
