"""Position-wise branches of a self-contained model."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.interop.remote.pieces.common import ACTIVATIONS, PARTS, Part, Place


class FeedForward(nn.Module):
    """Feed-forward network φ(x W1 + b1) W2 + b2 (Vaswani et al. 2017)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.up = nn.Linear(width, part["hidden"], bias=part["bias"])
        self.down = nn.Linear(part["hidden"], width, bias=part["bias"])
        self.activation = ACTIVATIONS[part["activation"]]

    def forward(self, x: Tensor, place: Place) -> Tensor:
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(nn.Module):
    """Gated feed-forward network (φ(x Wg) ⊙ x Wu) Wd (Shazeer 2020)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * part["hidden"], bias=part["bias"])
        self.down = nn.Linear(part["hidden"], width, bias=part["bias"])
        self.activation = ACTIVATIONS[part["activation"]]

    def forward(self, x: Tensor, place: Place) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.activation(gate) * up)


PARTS.update({"branch.feed_forward": FeedForward, "branch.gated_feed_forward": GatedFeedForward})
