"""Short convolution between two gates."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points
from qkv.mixers.linear.short_convolution import DepthwiseConvolution
from qkv.spec.mixers import gated_convolution as spec
from qkv.spec.register import implements


@implements(spec.GatedConvolution)
class GatedConvolution(Branch):
    """Short convolution between two gates (LFM2, Liquid AI 2025); see the spec for the equation.

        x (B, N, D) ─ input ─┬─ b (B, N, D) ─┐
                             ├─ v (B, N, D) ─⊙─ convolution ─┐
                             └─ c (B, N, D) ─────────────────⊙─ output ─ (B, N, D)

    State: the last K - 1 products b ⊙ v, (B, K - 1, D).
    """

    rewindable = False

    def __init__(self, part: spec.GatedConvolution, width: int):
        super().__init__(part, width)
        self.part = part
        self.input = Linear(width, 3 * width, bias=part.bias)
        self.convolution = DepthwiseConvolution(width, part.kernel_size, part.bias)
        self.output = Linear(width, width, bias=part.bias)

    def layouts(self) -> Layouts:
        return {"input": matrix(before=self.width, after=self.width, value=self.width)}

    def points(self) -> Points:
        return {
            "gate_before": "factor b of the values before the convolution (B, N, D)",
            "gate_after": "factor c of the output of the convolution (B, N, D)",
        }

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.convolution.init_state(batch)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        before, after, value = self.input(x).chunk(3, -1)
        before = self.offer(context.tap, "gate_before", before)
        after = self.offer(context.tap, "gate_after", after)
        y, tail = self.convolution(before * value, context, state)
        return self.output(after * y), None if state is None else tail

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * (self.part.kernel_size - 1) * self.width * self.input.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
