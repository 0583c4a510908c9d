"""Position-wise feed-forward branches."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, matrix
from qkv.layers.linear.linear import Linear, activated_by
from qkv.layers.linear.lora import call_on
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.position_wise.activations import ACTIVATIONS, build_activation
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
        self.activation, self.dropout = build_activation(part.activation), part.dropout

    def points(self) -> Points:
        return standard("pre_activation", "activation")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        hidden = self.offer(context.tap, "activation", self._hidden(x, context))
        return self.down(dropout(hidden, self.dropout, self.training)), state

    def _hidden(self, x: Tensor, context: Context) -> Tensor:
        """Compute φ(x W1 + b1), in one fused operation unless a tap receives the argument of φ."""
        if not self.offers(context.tap, "pre_activation"):
            return activated_by(self.activation, self.up, x)
        return self.activation(self.offer(context.tap, "pre_activation", self.up(x)))

    def ending(self) -> nn.Module:
        return self.down


@implements(spec.GatedFeedForward)
class GatedFeedForward(Branch):
    """Gated feed-forward branch (φ(x Wg) ⊙ x Wu) Wd (GLU variants, Shazeer 2020). Wg and Wu share one stored matrix.

    ``limit`` and ``shift`` change the factors of the product, see ``bounded``; ``gate_factor`` multiplies the gate, and
    ``norm`` normalises the product.
    """

    replayable = True

    def __init__(self, part: spec.GatedFeedForward, width: int):
        super().__init__(part, width)
        hidden = part.hidden_at(width)
        self.gate_up = Linear(width, 2 * hidden, bias=part.bias)
        self.down = Linear(hidden, width, bias=part.ends_with_bias)
        self.activation, self.dropout = ACTIVATIONS[part.activation], part.dropout
        self.multiply = _product(part)
        self.norm = None if part.norm.identity else build_norm(part.norm, hidden)

    def layouts(self) -> Layouts:
        return {"gate_up": matrix(gate=self.down.in_features, up=self.down.in_features)}

    def points(self) -> Points:
        return standard("gate", "up", "activation")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        gate, up = self.gate_up(x).chunk(2, -1)
        if context.tap is None and self.norm is None and not (self.training and self.dropout):
            return call_on(self.down, self.multiply, gate, up), state
        if context.tap is not None:
            gate, up = self.offer(context.tap, "gate", gate), self.offer(context.tap, "up", up)
        hidden = self.offer(context.tap, "activation", self.multiply(gate, up))
        hidden = hidden if self.norm is None else self.norm(hidden, context)
        return self.down(dropout(hidden, self.dropout, self.training)), state

    def ending(self) -> nn.Module:
        return self.down


Product = Callable[[Tensor, Tensor], Tensor]
"""Function that computes the product of a gated network from x Wg and x Wu, (..., F) each."""


def _product(part: spec.GatedFeedForward) -> Product:
    activation, factor = ACTIVATIONS[part.activation], part.gate_factor
    if factor != 1:
        return lambda gate, up: bounded(activation, factor * gate, up, part.limit, part.shift)
    if part.limit is None and not part.shift:
        return lambda gate, up: activation(gate) * up
    return lambda gate, up: bounded(activation, gate, up, part.limit, part.shift)


def bounded(
    activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor, limit: float | None, shift: float
) -> Tensor:
    """Compute φ(min(g, c)) ⊙ (clip(u, -c, c) + s), with φ ``activation``, c ``limit`` (None: no bound), s ``shift``
    (gpt-oss, 2025). gate and up: g and u, (..., F) each.
    """
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return activation(gate) * (up + shift)
