"""Global attention of linear cost, without softmax and independent of the order of positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.projections import offer_outputs, offer_projections
from qkv.ops.documents import documents
from qkv.ops.graphs import global_attention
from qkv.spec.mixers import graphs as spec
from qkv.spec.register import implements


@implements(spec.GlobalAttention)
class GlobalAttention(Branch):
    """Global attention (V + Q̃ (K̃^T V) / n) / (1 + Q̃ (K̃^T 1) / n) W_o (SGFormer, Wu et al. 2023), O(n) in time."""

    causal = False
    rewindable = False
    part: spec.GlobalAttention

    def __init__(self, part: spec.GlobalAttention, width: int):
        super().__init__(part, width)
        self.part, self.head_dim = part, width // part.num_heads
        self.qkv = Linear(width, 3 * width, bias=part.bias)
        self.output = Linear(width, width, bias=part.bias)

    def layouts(self) -> Layouts:
        heads = self.width, self.head_dim
        return {"qkv": matrix(q=heads, k=heads, v=heads), "output": from_heads(*heads)}

    def points(self) -> Points:
        return standard("q", "k", "v", "head_outputs")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        qkv = offer_projections(self, self.qkv(x), context, [self.head_dim] * 3, self.part.num_heads)
        if context.segments is None:
            out = self._attended(qkv, context.lengths)
        else:
            apart = documents(context.segments)
            out = apart.together(self._attended(apart.apart(qkv), apart.lengths))
        return self.output(offer_outputs(self, out, context, self.head_dim)), state

    def _attended(self, qkv: Tensor, lengths: Tensor | None) -> Tensor:
        """Compute attention over whole rows of concatenated queries, keys and values (B, N, 3 D)."""
        rows, count, _ = qkv.shape
        if lengths is None:
            lengths = torch.full((rows,), count, device=qkv.device)
        else:
            inside = torch.arange(count, device=qkv.device) < lengths[:, None]
            qkv = qkv.masked_fill(~inside[..., None], 0.0)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in qkv.chunk(3, -1))
        return global_attention(q, k, v, lengths, self.part.scaled).transpose(1, 2).flatten(2)

    def ending(self) -> nn.Module:
        return self.output
