"""Feed-forward networks with a depthwise convolution over neighbours on a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.mixers.local.grids import CONVOLUTIONS, grid_of
from qkv.mixers.whole_rows import each_row
from qkv.ops.dropout import dropout
from qkv.spec.mixers.grids.convolved import ConvolvedFeedForward as Spec
from qkv.spec.register import implements

_EPS = 1e-6
"""Added to the mean of the norms of features (Woo et al. 2023)."""


@implements(Spec)
class ConvolvedFeedForward(Branch):
    """Feed-forward network with a depthwise convolution of its input or of its hidden features. Bidirectional.

    hidden: x (B, N, D) ─ up ─ convolution ─ φ ─ (B, N, F) ─ down ─ (B, N, D)
    input:  x (B, N, D) ─ convolution ─ norm ─ up ─ φ ─ (B, N, F) ─ down ─ (B, N, D)
    """

    causal = False
    rewindable = False

    def __init__(self, part: Spec, width: int):
        super().__init__(part, width)
        self.part, self.axes, hidden = part, part.axes or 1, part.hidden_at(width)
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        features = hidden if part.place == "hidden" else width
        self.convolution = CONVOLUTIONS[self.axes](
            features, features, part.size, padding=part.size // 2, groups=features
        )
        self.norm, self.activation = build_norm(part.norm, width), ACTIVATIONS[part.activation]
        self.response, self.response_bias = (
            nn.Parameter(torch.zeros(hidden)) if part.response_norm else None for _ in range(2)
        )

    def layouts(self) -> Layouts:
        return {"convolution": WHOLE}

    def points(self) -> Points:
        return standard("activation")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Apply the branch. Raises ``UserError`` for a grid of another number of axes."""
        if self.part.place == "hidden":
            hidden = self._convolved(self.up(x), context)
        else:
            hidden = self.up(self.norm(self._convolved(x, context), context))
        hidden = self._responded(self.offer(context.tap, "activation", self.activation(hidden)), context)
        return self.down(dropout(hidden, self.part.dropout, self.training)), state

    def _convolved(self, x: Tensor, context: Context) -> Tensor:
        """Convolve each feature of x (B, N, F) on the grid of its row."""

        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            sizes, leading = grid_of(context, rows, self.axes, self.part.kind)
            if not rows.numel():
                return rows
            cells = rows[:, leading:].unflatten(1, sizes).movedim(-1, 1)
            return torch.cat((rows[:, :leading], self.convolution(cells).flatten(2).mT), 1)

        return each_row(x, context, mix, self.part.kind)

    def _responded(self, x: Tensor, context: Context) -> Tensor:
        """Apply the response norm to x (B, N, F), if there is one."""
        factor, bias = self.response, self.response_bias
        if factor is None or bias is None:
            return x

        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            # Adding 0 keeps the gradient of the norm finite where a row is 0.
            norms = (rows.square().sum(1, keepdim=True) + torch.finfo(rows.dtype).tiny).sqrt()
            return rows * norms / (norms.mean(-1, keepdim=True) + _EPS)

        return factor * each_row(x, context, mix, self.part.kind) + bias + x

    def ending(self) -> nn.Module:
        return self.down
