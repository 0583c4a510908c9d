"""Output gates of attention, (B, H, N, Dv) -> (B, H, N, Dv): multiply head outputs by factors computed from x."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from qkv.layers.context import Context
from qkv.layers.layout import Declared, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Observable, Points, standard
from qkv.spec import parts as spec
from qkv.spec.register import implementation, implements


@implements(spec.NoOutputGate)
class OutputGate(Observable, Declared):
    """No gate; base class of output gates. ``heads``: (number of heads H, features of a head's output Dv)."""

    def __init__(self, part: spec.OutputGate, width: int, heads: tuple[int, int], bias: bool):
        super().__init__()

    def forward(self, out: Tensor, x: Tensor, context: Context) -> Tensor:
        """Multiply the head outputs ``out`` (B, H, N, Dv) by the gate of x (B, N, D), the input of the branch."""
        return out


@implements(spec.FactorGate)
class FactorGate(OutputGate):
    """Gate factor · out."""

    def __init__(self, part: spec.FactorGate, width: int, heads: tuple[int, int], bias: bool):
        super().__init__(part, width, heads, bias)
        self.factor = part.factor

    def forward(self, out: Tensor, x: Tensor, context: Context) -> Tensor:
        return self.factor * out


@implements(spec.FeatureGate)
class FeatureGate(OutputGate):
    """Gate out ⊙ g(x W_g + b_g), per feature of each head; g: logistic function or softplus (Qiu et al. 2025)."""

    def __init__(self, part: spec.MappedGate, width: int, heads: tuple[int, int], bias: bool):
        super().__init__(part, width, heads, bias)
        self.heads, self.features = heads
        self.function = torch.sigmoid if part.function == "sigmoid" else functional.softplus
        self.map = Linear(width, self.heads * self.features, bias=bias)

    def layouts(self) -> Layouts:
        return {"map": matrix(gate=(self.heads * self.features, self.features))}

    def points(self) -> Points:
        return standard("gate")

    def forward(self, out: Tensor, x: Tensor, context: Context) -> Tensor:
        gate = self.function(self.offer(context.tap, "gate", self.map(x)))
        return out * gate.unflatten(-1, (self.heads, self.features)).transpose(1, 2)


@implements(spec.HeadGate)
class HeadGate(FeatureGate):
    """Gate out_h g(x w_h + b_h), one factor per head; g: logistic function or softplus (Qiu et al. 2025)."""

    def __init__(self, part: spec.MappedGate, width: int, heads: tuple[int, int], bias: bool):
        super().__init__(part, width, (heads[0], 1), bias)


def build_output_gate(part: spec.OutputGate, width: int, heads: tuple[int, int], bias: bool) -> OutputGate:
    """Build the gate of a spec; see ``OutputGate``."""
    return implementation(part, "qkv.mixers")(part, width, heads, bias)
