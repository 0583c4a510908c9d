"""HyperAttention: exact attention within blocks of similar vectors, an estimate of all other keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attention import KeyValueBranch
from qkv.mixers.projections import offer_outputs, offer_projections
from qkv.mixers.whole_rows import each_row
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Sites
from qkv.ops.sparse import hyper_attention as ops
from qkv.spec import masks
from qkv.spec.mixers import hyper_attention as spec
from qkv.spec.register import implements


@implements(spec.HyperAttention)
class HyperAttention(KeyValueBranch):
    """HyperAttention: concat_h(O_h) W_o, with O from ``qkv.ops.sparse.hyper_attention`` (Han et al. 2023).

        x (B, N, D) ─ qkv ─ q, k, v (B, H, N, Dk) ─ sort, blocks, sample ─ (B, N, H Dk) ─ output ─ (B, N, D)

    Attention is exact in rows of up to ``exact_up_to`` positions, and in decoding with a state (all keys and values).
    So decoding equals a forward pass up to this length; for longer rows, a forward pass estimates what decoding
    computes.
    """

    def __init__(self, part: spec.HyperAttention, width: int):
        head_dim = part.head_width(width)
        mask = masks.Causal() if part.causal else masks.Full()
        super().__init__(part, width, mask, (part.num_heads, head_dim, head_dim))
        self.part, size = part, part.num_heads * head_dim
        self.qkv, self.output = Linear(width, 3 * size, bias=part.bias), Linear(size, width, bias=part.bias)
        self.estimate = ops.causal if part.causal else ops.full

    def layouts(self) -> Layouts:
        heads = self.part.num_heads * self.head_dim, self.head_dim
        return {"qkv": matrix(q=heads, k=heads, v=heads), "output": from_heads(*heads)}

    def points(self) -> Points:
        return standard("q", "k", "v", "head_outputs")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x = offer_projections(self, self.qkv(x), context, [self.head_dim] * 3, self.part.num_heads)
        if state is None and x.shape[1] > self.part.exact_up_to:
            out = each_row(x, context, self._rows, self.spec.kind)
        else:
            q, k, v = self._heads(x)
            k, v, state, sites = self.with_past(k, v, context, state)
            out = self._exact(q, k, v, sites)
        return self.output(offer_outputs(self, out, context, self.head_dim)), state

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split (B, N, 3 H Dk) into q, k and v (B, H, N, Dk)."""
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in x.chunk(3, -1))
        return q, k, v

    def _exact(self, q: Tensor, k: Tensor, v: Tensor, sites: Sites) -> Tensor:
        problem = AttentionProblem(self.mask, sites, self.head_dim**-0.5, dropout=self._dropout)
        return attention(q, k, v, problem).transpose(1, 2).flatten(2)

    @property
    def _dropout(self) -> float:
        return self.part.dropout if self.training else 0.0

    def _rows(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Compute the attention of rows without a state: x (R, N, 3 H Dk), q, k and v concatenated -> (R, N, H Dk).

        Rows of at most ``exact_up_to`` positions are computed exactly; the output is 0 at padding.
        """
        part, count, lengths = self.part, x.shape[1], None if real is None else real.sum(-1)
        q, k, v = self._heads(x)
        if count <= part.exact_up_to:
            return self._exact(q, k, v, _sites(q, lengths))
        by_value = part.sampling == "value_norm"
        scale, dropout = self.head_dim**-0.5, self._dropout
        how = ops.Estimation(scale, part.block, part.samples, by_value, part.exact_up_to, dropout)
        out = self.estimate(q, k, v, lengths, self._chance(q), how).transpose(1, 2).flatten(2)
        if lengths is None or self.causal or x.is_meta:
            return out
        (short,) = torch.where(lengths <= part.exact_up_to)
        if not len(short):
            return out
        q, k, v = (t[short, :, : part.exact_up_to] for t in (q, k, v))
        exact = self._exact(q, k, v, _sites(q, lengths[short]))
        return out.index_put((short,), F.pad(exact, (0, 0, 0, count - part.exact_up_to)))

    def _chance(self, q: Tensor) -> ops.Chance:
        """Return random projections, sampled with the seed, and random numbers that select keys.

        In training, each call has new numbers; otherwise they too are sampled with the seed.
        """
        sizes = self.part.num_heads, self.head_dim, self.part.bits
        chance = ops.chance(self.part.seed, sizes, q.shape[2], q)
        return chance._replace(draws=torch.rand(q.shape[:3], device=q.device)) if self.training else chance

    def ending(self) -> nn.Module:
        return self.output


def _sites(q: Tensor, lengths: Tensor | None) -> Sites:
    """Return the positions of whole rows (R, H, N, Dk)."""
    steps = torch.arange(q.shape[2], device=q.device)[None]
    if lengths is None:
        return Sites(steps, steps, aligned=True)
    return Sites(steps, steps.masked_fill(steps >= lengths[:, None], -1))
