"""Position-wise feed-forward branches."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, matrix
from qkv.layers.linear.linear import Linear, activated_by
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops.dropout import dropout
from qkv.spec import branches as spec
from qkv.spec.register import implements


@implements(spec.FeedForward)
class FeedForward(Branch):
    """Feed-forward branch φ(x W1 + b1) W2 + b2 (Vaswani et al. 2017)."""

    replayable = True

    def __init__(self, part: spec.FeedForward, width: int):
        super().__init__(part, width)
        hidden = part.hidden_at(width)
        self.up = Linear(width, hidden, bias=part.bias)
        self.down = Linear(hidden, width, bias=part.bias)
        self.activation, self.dropout = ACTIVATIONS[part.activation], part.dropout

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        hidden = dropout(activated_by(self.activation, self.up, x), self.dropout, self.training)
        return self.down(hidden), state

    def ending(self) -> nn.Module:
        return self.down


@implements(spec.GatedFeedForward)
class GatedFeedForward(Branch):
    """Gated feed-forward branch (φ(x Wg) ⊙ x Wu) Wd (GLU variants, Shazeer 2020). Wg and Wu share one stored matrix."""

    replayable = True

    def __init__(self, part: spec.GatedFeedForward, width: int):
        super().__init__(part, width)
        hidden = part.hidden_at(width)
        self.gate_up = Linear(width, 2 * hidden, bias=part.bias)
        self.down = Linear(hidden, width, bias=part.ends_with_bias)
        self.activation, self.dropout = ACTIVATIONS[part.activation], part.dropout

    def layouts(self) -> Layouts:
        return {"gate_up": matrix(gate=self.down.in_features, up=self.down.in_features)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        gate, up = self.gate_up(x).chunk(2, -1)
        hidden = dropout(self.activation(gate) * up, self.dropout, self.training)
        return self.down(hidden), state

    def ending(self) -> nn.Module:
        return self.down
