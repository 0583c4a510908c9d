"""Position-wise branch that attends to learned key-value slots."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops.linear.memory_layer import memory, weights
from qkv.spec.position_wise import memory_layer as spec
from qkv.spec.register import implements


@implements(spec.MemoryLayer)
class MemoryLayer(Branch):
    """Attention to learned key-value slots: Σ_h softmax(x W_h K_h^T / √k) V_h, or Σ_h φ(x W_h K_h^T) V_h.

    query: W (H·k, D)   keys: K (H·S, k), head by head   values: V^T (D, H·S)
    """

    def __init__(self, part: spec.MemoryLayer, width: int):
        super().__init__(part, width)
        self.num_heads = part.num_heads
        self.slots, self.key_dim = part.sizes(width)
        self.activation = None if part.activation == "softmax" else ACTIVATIONS[part.activation]
        self.query = Linear(width, self.num_heads * self.key_dim, bias=False)
        self.keys = nn.Parameter(torch.empty(self.num_heads * self.slots, self.key_dim))
        self.values = Linear(self.num_heads * self.slots, width, bias=False)
        self.reset_parameters()

    def layouts(self) -> Layouts:
        slots = self.num_heads * self.slots, self.slots
        return {
            "query": matrix(q=(self.num_heads * self.key_dim, self.key_dim)),
            "keys": matrix(k=slots),
            "values": from_heads(*slots),
        }

    def reset_parameters(self) -> None:
        """Initialise keys from N(0, 1) for softmax, else from N(0, 1/k), so that scores have unit variance."""
        nn.init.normal_(self.keys, std=1.0 if self.activation is None else self.key_dim**-0.5)

    def points(self) -> Points:
        return {"slot_weights": "weights of the slots (B, N, H, S)"}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q = self.query(x).unflatten(-1, (self.num_heads, self.key_dim))
        shares = weights(q, self.keys.view(self.num_heads, self.slots, self.key_dim), self.activation)
        shares = self.offer(context.tap, "slot_weights", shares)
        return memory(shares, self.values.weight), state

    def ending(self) -> nn.Module:
        return self.values
