"""Causal linear attention with a fixed-size matrix state."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear import Linear
from qkv.ops.linear_attention.chunked import linear_attention
from qkv.ops.linear_attention.reference import feature
from qkv.spec import branches as spec
from qkv.spec.register import implements


@implements(spec.LinearAttention)
class LinearAttention(Branch):
    """Linear attention: φ(Q) S / (φ(Q) z), S = Σ_{j<=i} φ(k_j)^T v_j, z = Σ_{j<=i} φ(k_j) (Katharopoulos et al. 2020).

    State: S (B, H, Dk, Dv) and z (B, H, Dk), independent of the length.
    """

    rewindable = False

    def __init__(self, part: spec.LinearAttention, width: int):
        super().__init__(part, width)
        self.num_heads, self.head_dim, self.chunk = part.num_heads, width // part.num_heads, part.chunk
        self.qkv = Linear(width, 3 * width, bias=part.bias)
        self.output = Linear(width, width, bias=part.bias)

    def layouts(self) -> Layouts:
        heads = self.width, self.head_dim
        return {"qkv": matrix(q=heads, k=heads, v=heads), "output": from_heads(*heads)}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        like = self.qkv.weight.detach()
        return like.new_zeros(batch, self.num_heads, self.head_dim, self.head_dim), like.new_zeros(
            batch, self.num_heads, self.head_dim
        )

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        out, last = linear_attention(feature(q), feature(k), v, state, context.valid, context.segments, self.chunk)
        return self.output(out.transpose(1, 2).flatten(2)), None if state is None else last

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.num_heads * self.head_dim * (self.head_dim + 1) * self.qkv.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
