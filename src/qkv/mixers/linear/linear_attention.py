"""Linear attention: a feature map in place of the softmax, and sums of fixed size in place of all keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.mixers.linear.feature_maps import FeatureMap
from qkv.mixers.whole_rows import each_row
from qkv.ops.linear_attention.chunked import linear_attention
from qkv.ops.linear_attention.full import full
from qkv.spec.mixers import linear_attention as spec
from qkv.spec.register import implementation, implements


@implements(spec.LinearAttention)
class LinearAttention(Branch):
    """Linear attention: φ(Q) S / (φ(Q) z), S = Σ_j φ(k_j)^T v_j, z = Σ_j φ(k_j) (Katharopoulos et al. 2020).

    Sums over j <= i if causal, else over the row. State: S (B, H, M, Dv) and z (B, H, M), independent of the length.
    """

    rewindable = False

    def __init__(self, part: spec.LinearAttention, width: int):
        super().__init__(part, width)
        self.causal = part.causal
        self.num_heads, self.head_dim, self.chunk = part.num_heads, width // part.num_heads, part.chunk
        self.qkv = Linear(width, 3 * width, bias=part.bias)
        self.features: FeatureMap = implementation(part.features, "qkv.mixers")(
            part.features, part.num_heads, self.head_dim
        )
        self.output = Linear(width, width, bias=part.bias)

    def layouts(self) -> Layouts:
        heads = self.width, self.head_dim
        return {"qkv": matrix(q=heads, k=heads, v=heads), "output": from_heads(*heads)}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        if not self.causal:
            return ()
        like, sizes = self.qkv.weight.detach(), (batch, self.num_heads, self.features.num_features)
        return like.new_zeros(*sizes, self.head_dim), like.new_zeros(sizes)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        if not self.causal:
            return each_row(x, context, lambda rows, real: self._whole(rows, real, context), self.spec.kind), state
        q, k, v = self._heads(x, context)
        out, last = linear_attention(q, k, v, state, context.valid, context.segments, self.chunk)
        return self.output(out.transpose(1, 2).flatten(2)), last

    def _heads(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return features of queries and keys (B, H, N, M), and values (B, H, N, Dv)."""
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.features(q, context, True), self.features(k, context, False)
        return q.to(v.dtype), k.to(v.dtype), v

    def _whole(self, rows: Tensor, real: Tensor | None, context: Context) -> Tensor:
        q, k, v = self._heads(rows, context)
        out = full(q, k if real is None else k * real[:, None, :, None], v)
        return self.output(out.transpose(1, 2).flatten(2))

    def state_bytes(self, length: int, batch: int = 1) -> int:
        if not self.causal:
            return 0
        sizes = self.num_heads, self.features.num_features, self.head_dim + 1
        return batch * torch.Size(sizes).numel() * self.qkv.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
