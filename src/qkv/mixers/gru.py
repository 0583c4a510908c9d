"""The gated recurrent unit as a mixer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State, implements
from qkv.layers.context import Context
from qkv.layers.linear import Linear
from qkv.ops.recurrence.choose import gru
from qkv.spec import branches as spec


@implements(spec.GRU)
class GRU(Branch):
    """h_i = (1 - z) ⊙ n + z ⊙ h_{i-1} (Cho et al. 2014), then a linear map. State: h (B, E)."""

    rewindable = False

    def __init__(self, part: spec.GRU, width: int):
        super().__init__(part, width)
        self.hidden = part.hidden or width
        self.input_weight = nn.Parameter(torch.empty(3 * self.hidden, width))
        self.hidden_weight = nn.Parameter(torch.empty(3 * self.hidden, self.hidden))
        self.input_bias = nn.Parameter(torch.zeros(3 * self.hidden))
        self.hidden_bias = nn.Parameter(torch.zeros(3 * self.hidden))
        self.output = Linear(self.hidden, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Inputs N(0, 1/D), each recurrent gate an orthogonal matrix, so that h neither dies nor grows at the start."""
        nn.init.normal_(self.input_weight, std=self.width**-0.5)
        for gate in self.hidden_weight.data.chunk(3):
            nn.init.orthogonal_(gate)

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.hidden_weight.detach().new_zeros(batch, self.hidden)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        h = x.new_zeros(x.shape[0], self.hidden) if state is None else state
        weights = (self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias)
        hs = gru(x, h, weights, context.document_starts)
        if state is not None:
            state = self._last(h, hs, context.lengths)
        return self.output(hs), state

    @staticmethod
    def _last(h: Tensor, hs: Tensor, lengths: Tensor | None) -> Tensor:
        """h after the last real position of each row, the given one where a row has none."""
        joined = torch.cat((h[:, None], hs), 1)
        if lengths is None:
            return joined[:, -1].clone()  # as a view it would keep every h in memory
        return joined.gather(1, lengths[:, None, None].expand(-1, 1, h.shape[-1]))[:, 0]

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.hidden * self.hidden_weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
