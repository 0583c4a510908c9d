"""Disentangled attention (DeBERTa): content-to-content, content-to-position and position-to-content scores."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.layout import Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import Norm, build_norm
from qkv.layers.relative import SharedTable
from qkv.mixers.attention.scored_attention import ScoredAttention
from qkv.ops.masks import Sites
from qkv.ops.relative_scores import by_key, by_query, log_buckets
from qkv.spec.mixers import relative_attention as spec
from qkv.spec.register import implements


class DistanceVectors(SharedTable):
    """Relative position embeddings P (2 S, D), one normalised vector per distance bucket.

    With ``shared``, all layers of a stack use one table.
    """

    def __init__(self, part: spec.DisentangledAttention, width: int):
        super().__init__()
        self.part, self.width = part, width
        # In a tuple, so that the owner's weights are not registered twice.
        self.owner: tuple[DistanceVectors, ...] = ()
        # Not 0: the norm of a zero vector is 0, without useful gradients.
        self.table: nn.Parameter | None = nn.Parameter(torch.randn(2 * part.span, width) * 0.02)
        self.norm: Norm | None = build_norm(part.table_norm, width)

    @property
    def key(self) -> Hashable:
        return self.width, *self.part.table_key

    def read_from(self, owner: DistanceVectors) -> None:
        self.table, self.norm, self.owner = None, None, (owner,)

    def forward(self, context: Context) -> Tensor:
        """Return position vectors P (2 S, D), normalised and with dropout."""
        holder = self.owner[0] if self.owner else self
        assert holder.table is not None
        assert holder.norm is not None
        return F.dropout(holder.norm(holder.table, context), self.part.table_dropout, self.training)


@implements(spec.DisentangledAttention)
class DisentangledAttention(ScoredAttention):
    """DeBERTa's attention: softmax((q_i · k_j + q_i · a_d + b_d · k_j) / (τ √(f Dk)), masked) V (He et al. 2021).

    d = clip(bucket(i - j) + S, 0, 2 S - 1). Position keys a = P W_a and position queries b = P W_b, (2 S, H, Dk). f:
    number of terms, at most 3. State: keys and values, as in ``Attention``.
    """

    def __init__(self, part: spec.DisentangledAttention, width: int):
        super().__init__(part, width, part.terms)
        self.part: spec.DisentangledAttention = part
        self.relative = DistanceVectors(part, width)
        apart = not part.share_projections
        keys_biased = part.bias and part.key_bias
        self.position_key = (
            Linear(width, self.sizes[1], bias=keys_biased) if apart and part.content_to_position else None
        )
        self.position_query = (
            Linear(width, self.sizes[0], bias=part.bias) if apart and part.position_to_content else None
        )

    def layouts(self) -> Layouts:
        q, k, _ = self.sizes
        return {
            **super().layouts(),
            "position_key": matrix(k=(k, self.head_dim)),
            "position_query": matrix(q=(q, self.head_dim)),
        }

    def scored(self, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        vectors = self.relative(context)
        key = "distance buckets", self.part.position_buckets, self.part.max_distance, self.causal, self.ring, k.shape[2]
        index = context.once(key, lambda: self._index(sites))
        terms = []
        if self.part.content_to_position:
            terms.append(by_query(q, self._by_head(self._keys(vectors)), index))
        if self.part.position_to_content:
            terms.append(
                by_key(k.repeat_interleave(q.shape[1] // k.shape[1], 1), self._by_head(self._queries(vectors)), index)
            )
        return q, self.scale * sum(terms[1:], terms[0])

    def _index(self, sites: Sites) -> Tensor:
        """Return the distance bucket d of each query and key, (B or 1, N, M)."""
        part, distance = self.part, sites.query[:, :, None] - sites.key[:, None, :]
        bucket = (
            distance
            if part.position_buckets is None
            else log_buckets(distance, part.position_buckets, part.max_distance)
        )
        return (bucket + part.span).clamp(0, 2 * part.span - 1)

    def _keys(self, vectors: Tensor) -> Tensor:
        """Compute position keys P W_a, (2 S, G Dk)."""
        return self.position_key(vectors) if self.position_key is not None else self._part_of_qkv(vectors, 1)

    def _queries(self, vectors: Tensor) -> Tensor:
        """Compute position queries P W_b, (2 S, H Dk)."""
        return self.position_query(vectors) if self.position_query is not None else self._part_of_qkv(vectors, 0)

    def _part_of_qkv(self, vectors: Tensor, number: int) -> Tensor:
        """Project distance vectors (2 S, D) with the query (0) or key (1) rows of the content's projection matrix."""
        bias = (self.query_bias, None)[number] if self.qkv.bias is None else self.qkv.bias.split(self.sizes)[number]
        return F.linear(vectors, self.qkv.weight.split(self.sizes)[number], bias)

    def _by_head(self, vectors: Tensor) -> Tensor:
        """Split heads: (R, H Dk or G Dk) -> (H, R, Dk)."""
        heads = vectors.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        return heads.repeat_interleave(self.part.num_heads // heads.shape[0], 0)
