"""Linear attention: a feature map in place of the softmax, and sums of fixed size in place of all keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.linear.feature_maps import FeatureMap
from qkv.mixers.linear.states import read_states, replaced_states
from qkv.mixers.whole_rows import each_row
from qkv.ops.linear_attention.chunked import linear_attention
from qkv.ops.linear_attention.full import full
from qkv.ops.linear_attention.reference import mean
from qkv.ops.matrix_state.reference import decayed_states
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

    def points(self) -> Points:
        return standard("q", "k", "v", *(["state"] if self.causal else []), "head_outputs")

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        if not self.causal:
            return ()
        like, sizes = self.qkv.weight.detach(), (batch, self.num_heads, self.features.num_features)
        return like.new_zeros(*sizes, self.head_dim), like.new_zeros(sizes)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        if not self.causal:
            return each_row(x, context, lambda rows, real: self._whole(rows, real, context), self.spec.kind), state
        q, k, v = self._heads(x, context)
        outputs = self._replaced((q, k, v), context, state)
        if outputs is None:
            outputs = linear_attention(q, k, v, state, context.valid, context.segments, self.chunk)
        out = self.offer(context.tap, "head_outputs", outputs[0])
        return self.output(out.transpose(1, 2).flatten(2)), outputs[1]

    def _replaced(
        self, qkv: tuple[Tensor, Tensor, Tensor], context: Context, state: State | None
    ) -> tuple[Tensor, State | None] | None:
        """Offer the sums S to the tap; return (output (B, H, N, Dv), next state) of its replacement, or None."""
        if not self.offers(context.tap, "state"):
            return None
        q, k, v = qkv
        k = k if context.valid is None else k * context.valid[:, None, :, None]
        empty = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        sums, total = (None, empty[..., 0]) if state is None else state
        starts = context.document_starts
        replaced = replaced_states(self, context, sums, empty, lambda s: decayed_states(k, v, None, s, starts))
        if replaced is None:
            return None
        totals = decayed_states(k, torch.ones_like(v[..., :1]), None, total[..., None], starts)
        above, last = read_states(q, replaced, sums, context)
        below, last_total = read_states(q, totals, None if sums is None else total[..., None], context)
        return mean(above, below[..., 0]), None if last_total is None else (last, last_total[..., 0])

    def _heads(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return features of queries and keys (B, H, N, M), and values (B, H, N, Dv)."""
        heads = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k, v = (self.offer(context.tap, name, value) for name, value in zip(("q", "k", "v"), heads, strict=True))
        q, k = self.features(q, context, True), self.features(k, context, False)
        return q.to(v.dtype), k.to(v.dtype), v

    def _whole(self, rows: Tensor, real: Tensor | None, context: Context) -> Tensor:
        q, k, v = self._heads(rows, context)
        out = full(q, k if real is None else k * real[:, None, :, None], v)
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2))

    def state_bytes(self, length: int, batch: int = 1) -> int:
        if not self.causal:
            return 0
        sizes = self.num_heads, self.features.num_features, self.head_dim + 1
        return batch * torch.Size(sizes).numel() * self.qkv.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
