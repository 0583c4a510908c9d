"""Position-wise branch that reads a large memory of learned values by product keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points
from qkv.ops.at_least_single import at_least_single
from qkv.ops.sparse.product_keys import largest, read, spread
from qkv.spec.position_wise import product_keys as spec
from qkv.spec.register import implements


@implements(spec.ProductKeyMemory)
class ProductKeyMemory(Branch):
    """Memory with product keys: Σ_h Σ_ij softmax(q_h · (c_hi, c'_hj)) V_ij over the k largest (Lample et al. 2019).

    query: W (H·d, D)   keys: c and c' (H, 2, n, d / 2)   values: V (n², D), shared by all heads
    """

    def __init__(self, part: spec.ProductKeyMemory, width: int):
        super().__init__(part, width)
        self.num_heads, self.top_k, self.key_dim = part.num_heads, part.top_k, part.size(width)
        features = self.num_heads * self.key_dim
        self.query = Linear(width, features, bias=False)
        self.query_norm = build_norm(part.query_norm, features)
        self.keys = nn.Parameter(torch.empty(self.num_heads, 2, part.num_keys, self.key_dim // 2))
        self.values = nn.Parameter(torch.empty(part.num_keys**2, width))
        self.reset_parameters()

    def layouts(self) -> Layouts:
        return {"query": matrix(q=(self.num_heads * self.key_dim, self.key_dim)), "keys": WHOLE, "values": WHOLE}

    def reset_parameters(self) -> None:
        """Initialise keys from N(0, 2 / d), so that scores of half keys have unit variance; values from N(0, 1 / D)."""
        nn.init.normal_(self.keys, std=(self.key_dim // 2) ** -0.5)
        nn.init.normal_(self.values, std=self.width**-0.5)

    def points(self) -> Points:
        return {
            "slot_scores": "scores of the slots that each head reads, in descending order (B, N, H, k)",
            "slot_weights": "weights of all slots, added over the heads (B, N, S)",
        }

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q = self.query_norm(self.query(x), context).unflatten(-1, (self.num_heads, self.key_dim))
        scores, index = largest(q, self.keys.to(q.dtype), self.top_k)
        scores = self.offer(context.tap, "slot_scores", at_least_single(scores))
        weights = self.offer_computed(context.tap, "slot_weights", lambda: spread(scores, index, len(self.values)))
        if weights is not None:
            return weights.to(self.values.dtype) @ self.values, state
        return read(scores, index, self.values), state

    def idle_parameters(self, positions: int = 1) -> int:
        return self.width * max(0, self.values.shape[0] - positions * self.num_heads * self.top_k)
