"""Relative attention: content and position scores (Transformer-XL, XLNet), and biases with gates (WavLM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Declared, Layout, Layouts, Piece, matrix, vector
from qkv.layers.linear.linear import Linear
from qkv.layers.relative import T5Buckets
from qkv.mixers.attention.scored_attention import ScoredAttention
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.masks import Sites
from qkv.ops.positions import sinusoid_halves
from qkv.ops.relative_scores import by_query
from qkv.ops.selection.choices import by_reference
from qkv.spec.mixers import relative_attention as spec
from qkv.spec.register import implements
from qkv.system.errors import UserError


class TypeScores(Declared):
    """Scores (q_i + w) · e_s by token type: s = 0 if tokens i and j have the same type, else 1 (XLNet).

    w (H Dk), initialised to 0; e (2, H Dk).
    """

    def __init__(self, size: int, head_dim: int):
        super().__init__()
        self.head_dim = head_dim
        self.bias = nn.Parameter(torch.zeros(size))
        self.vectors = nn.Parameter(torch.randn(2, size) * 0.02)

    def layouts(self) -> Layouts:
        size = self.bias.numel()
        return {
            "bias": vector("q", size, self.head_dim),
            "vectors": Layout("whole", into=(Piece("q", size, self.head_dim),)),
        }

    def forward(self, q: Tensor, context: Context) -> Tensor:
        """Return scores by token type (B, H, N, N), or (B, H, N, 1) if the input has no types. q (B, H, N, Dk)."""
        if context.types is not None and context.arrival is not None:
            raise UserError(
                "relative attention supports token types without a state only; process the whole sequence in one call"
            )
        w = self.bias.view(-1, 1, self.head_dim).to(q.dtype)
        vectors = self.vectors.unflatten(1, (-1, self.head_dim)).transpose(0, 1).to(q.dtype)
        scores = (q + w) @ vectors.transpose(-1, -2)
        if context.types is None:
            return scores[..., :1]
        differs = context.types[:, None, :, None] != context.types[:, None, None, :]
        return torch.where(differs, scores[..., 1:], scores[..., :1])


@implements(spec.RelativeAttention)
class RelativeAttention(ScoredAttention):
    """Self-attention with relative position scores (Transformer-XL, Dai et al. 2019; XLNet, Yang et al. 2019).

        softmax(((q_i + u) · k_j + (q_i + v) · W_r r_{i-j} + (q_i + w) · e_s) / (τ √Dk), masked) V

    r_d is a sinusoid of D features, sines first; u, v and w (H Dk) are initialised to 0. The last term exists if
    ``by_type``: s = 0 if i and j have the same type, else 1. If the input has no types, this term is equal for all keys
    and has no effect. State: keys and values, as in ``Attention``. Position terms are recomputed; key types are not
    stored.
    """

    def __init__(self, part: spec.RelativeAttention, width: int):
        super().__init__(part, width)
        self.part: spec.RelativeAttention = part
        self.position = Linear(width, self.sizes[0], bias=False)
        self.content_bias = nn.Parameter(torch.zeros(self.sizes[0]))
        self.position_bias = nn.Parameter(torch.zeros(self.sizes[0]))
        self.types = TypeScores(self.sizes[0], self.head_dim) if part.by_type else None

    def layouts(self) -> Layouts:
        heads = self.sizes[0], self.head_dim
        bias = vector("q", *heads)
        return {**super().layouts(), "position": matrix(q=heads), "content_bias": bias, "position_bias": bias}

    def scored(self, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        u, v = (bias.view(-1, 1, self.head_dim).to(q.dtype) for bias in (self.content_bias, self.position_bias))
        key = "distances", self.part.max_distance, self.causal, self.ring, k.shape[2]
        distances, index = context.once(key, lambda: self._distances(sites, context))
        r = sinusoid_halves(distances, self.width, dtype=single_or_wider(q.dtype)).to(q.dtype)
        added = self._by_distance(q + v, r, index)
        if self.types is not None:
            added = added + self.types(q, context)
        return q + u, self.scale * added

    def _by_distance(self, q: Tensor, r: Tensor, index: Tensor) -> Tensor:
        """Compute position scores q_i · W_r r_{i-j}, (B, H, N, M).

        r (R, D): sinusoids of distances; index (B or 1, N, M): row of r for each query and key. A single query is
        multiplied by W_r first, which is R times cheaper.
        """
        if q.shape[2] == 1:
            weight = self.position.weight.unflatten(0, (-1, self.head_dim)).to(q.dtype)
            return by_query(q @ weight, r.expand(q.shape[1], -1, -1), index)
        return by_query(q, self.position(r).unflatten(-1, (-1, self.head_dim)).transpose(0, 1), index)

    def _distances(self, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        """Return (all distances (R), index of each pair's distance (B or 1, N, M), clamped for hidden keys)."""
        first, last = self._ends(sites, context)
        distance = sites.query[:, :, None] - sites.key[:, None, :]
        if self.part.max_distance is not None:
            first, last = max(first, -self.part.max_distance), min(last, self.part.max_distance)
        steps = torch.arange(first, max(first, last) + 1, device=distance.device)
        return steps, distance.clamp(first, max(first, last)) - first

    def _ends(self, sites: Sites, context: Context) -> tuple[int, int]:
        """Return the smallest and largest distance i - j of visible keys."""
        count, ahead = sites.query.shape[1], 0 if self.causal else 1
        if context.arrival is not None or sites.query.is_meta or by_reference() or not count:
            end = count if context.arrival is None else context.arrival.end
            return -ahead * max(count - 1, 0), max(end - 1, 0)
        # The caller may pass positions of any values.
        span = int(sites.query.max() - sites.query.min())
        return -ahead * span, span


@implements(spec.GatedBiasAttention)
class GatedBiasAttention(ScoredAttention):
    """Self-attention with a gate on the bias of each distance (WavLM, Chen et al. 2022); see the spec for the equation.

    gate (8, D / H): two sums of four outputs are the gates' arguments; factor (H): s. State: keys and values.
    """

    def __init__(self, part: spec.GatedBiasAttention, width: int):
        super().__init__(part, width)
        self.part: spec.GatedBiasAttention = part
        self.buckets = T5Buckets(part.buckets, part, (width, width))  # type: ignore[arg-type]
        self.gate = Linear(width // part.num_heads, 8)
        self.factor = nn.Parameter(torch.ones(part.num_heads))

    def layouts(self) -> Layouts:
        return {**super().layouts(), "factor": WHOLE, "gate": WHOLE}

    def terms(self, x: Tensor, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        heads = x.unflatten(-1, (self.part.num_heads, -1)).transpose(1, 2)
        first, second = self.gate(heads).unflatten(-1, (2, 4)).sum(-1).sigmoid().unbind(-1)
        gates = first * (second * self.factor[:, None].to(x.dtype) - 1) + 2
        return q, gates[..., None] * self.buckets.bias(q, sites, self.scale, context)
