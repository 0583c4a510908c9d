"""Convolutions over positions: causal dilated, and centred."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layout, Layouts, Piece, matrix
from qkv.layers.observable import Points, standard
from qkv.ops.convolution import taps
from qkv.ops.linear.choose import linear
from qkv.spec import branches as spec
from qkv.spec.register import implements
from qkv.state.tail import extended


class _Gated(Branch):
    """Base class of convolutions: W [taps] + b of a position's K inputs (taps); if gated, a ⊙ σ(g) of the two halves.

    weight (E, K·D), E = 2 D if gated (GLU, Dauphin et al. 2017), else D.
    """

    def __init__(self, part: spec.Convolution | spec.CausalConvolution, width: int):
        super().__init__(part, width)
        self.part = part
        outputs = 2 * width if part.gated else width
        self.weight = nn.Parameter(torch.empty(outputs, part.kernel_size * width))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise from N(0, 1 / (K·D)), which preserves the variance of the input."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def layouts(self) -> Layouts:
        out = matrix(value=self.width, gate=self.width).out if self.part.gated else ()
        return {"weight": Layout("matrix", out, (Piece("taps", self.weight.shape[1], self.width),))}

    def points(self) -> Points:
        return standard("gate") if self.part.gated else {}

    def _of(self, inputs: Tensor, context: Context) -> Tensor:
        """Map the concatenated taps of each position (B, N, K·D) to the output (B, N, D); apply the gate, if any."""
        y = linear(inputs, self.weight, self.bias)
        if not self.part.gated:
            return y
        value, gate = y.chunk(2, -1)
        return value * self.offer(context.tap, "gate", gate).sigmoid()


@implements(spec.CausalConvolution)
class CausalConvolution(_Gated):
    """Causal convolution y_i = Σ_t W_t x_{i - t·dilation} + b, optionally gated (WaveNet, van den Oord et al. 2016).

    The weight holds the latest tap first. State: the last (K - 1)·dilation inputs.
    """

    rewindable = False
    part: spec.CausalConvolution

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.weight.detach().new_zeros(batch, self.part.tail, self.width)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail = x.new_zeros(x.shape[0], self.part.tail, self.width) if state is None else state
        window, tail = extended(tail, x, context.lengths)
        y = self._of(taps(window, self.part.kernel_size, self.part.dilation, context.segments), context)
        return y, None if state is None else tail

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.part.tail * self.width * self.weight.element_size()


@implements(spec.Convolution)
class Convolution(_Gated):
    """Centred convolution y_i = Σ_t W_t x_{i + t - ⌊K/2⌋} + b, t < K, optionally gated (ConvS2S, Gehring et al. 2017).

    The weight holds the latest tap first. Padding and other documents are read as 0. Bidirectional and stateless.
    """

    causal = False
    rewindable = False

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        if context.valid is not None:
            x = x.masked_fill(~context.valid[..., None], 0.0)
        before = self.part.kernel_size // 2
        after = self.part.kernel_size - 1 - before
        window = F.pad(x, (0, 0, before, after))
        return self._of(taps(window, self.part.kernel_size, 1, context.segments, after), context), state
