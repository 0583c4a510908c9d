"""LSH attention (Reformer): shared query/key vectors; hashing selects the keys of each query."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attention import KeyValueBranch
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.documents import Documents, documents
from qkv.ops.masks import Sites
from qkv.ops.sparse import lsh_attention as ops
from qkv.spec.mixers import lsh_attention as spec
from qkv.spec.register import implements

_EPS = 1e-6
"""Epsilon of the key normalisation, as in the published models."""


@implements(spec.LSHAttention)
class LSHAttention(KeyValueBranch):
    """LSH attention: concat_h(O_h) W_o, with O from ``qkv.ops.sparse.lsh_attention`` (Kitaev et al. 2020).

    The keys are k_j = q_j / √(|q_j|² + Dk · 10⁻⁶).

        x (B, N, D) ─┬─ query_key ── q (B, H, N, Dk) ─┬──────────── hash, sort, chunks ─┐
                     │                                └─ length 1 ── k (B, H, N, Dk) ───┼─ output ─ (B, N, D)
                     └─ value ────── v (B, H, N, Dk) ───────────────────────────────────┘

    Rows longer than ``chunk_length`` are hashed if there is no state. Shorter rows, and decoding with a state (all keys
    and values), use full attention under the mask. So decoding equals a forward pass up to ``chunk_length`` positions;
    for longer rows, hashing approaches the result of decoding as the number of rounds grows.
    """

    def __init__(self, part: spec.LSHAttention, width: int):
        head_dim = part.head_width(width)
        super().__init__(part, width, part.mask, (part.num_heads, head_dim, head_dim))
        self.part, size = part, part.num_heads * head_dim
        self.query_key, self.value = Linear(width, size, bias=part.bias), Linear(width, size, bias=part.bias)
        self.output = Linear(size, width, bias=part.bias)
        self.hashing = ops.Hashing(
            part.num_hashes, part.num_buckets, part.chunk_length, part.chunks_before, part.chunks_after, part.seed
        )

    def layouts(self) -> Layouts:
        heads = self.part.num_heads * self.head_dim, self.head_dim
        return {"query_key": matrix(q=heads), "value": matrix(v=heads), "output": from_heads(*heads)}

    def points(self) -> Points:
        return {"q": "queries, from which keys follow (B, H, N, Dk)", **standard("v", "head_outputs")}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        heads = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (self.query_key(x), self.value(x)))
        q, v = (self.offer(context.tap, name, value) for name, value in zip(("q", "v"), heads, strict=True))
        k = q * (q.pow(2).mean(-1, keepdim=True) + _EPS).rsqrt() / self.head_dim**0.5
        dropout = self.part.dropout if self.training else 0.0
        if state is None and x.shape[1] > self.part.chunk_length:
            out = self._hashed(q, k, v, context, dropout)
        else:
            k, v, state, sites = self.with_past(k, v, context, state)
            out = attention(q, k, v, AttentionProblem(self.mask, sites, 1.0, dropout=dropout, added=_itself(sites, q)))
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _hashed(self, q: Tensor, k: Tensor, v: Tensor, context: Context, dropout: float) -> Tensor:
        count, batch = q.shape[2], q.shape[0]
        positions = context.positions.expand(batch, -1)
        lengths = torch.full((batch,), count, device=q.device) if context.lengths is None else context.lengths
        row = ops.RowPositions(lengths, positions, self.mask, context.prefix, context.visible)
        if context.segments is None:
            return ops.attention(q, k, v, row, self.hashing, dropout)
        valid = context.valid
        packed = documents(context.segments if valid is None else context.segments.masked_fill(~valid, -1))
        q, k, v = (packed.apart(t.transpose(1, 2)).transpose(1, 2) for t in (q, k, v))
        out = ops.attention(q, k, v, _of_documents(row, packed), self.hashing, dropout)
        return packed.together(out.transpose(1, 2)).transpose(1, 2)

    def ending(self) -> nn.Module:
        return self.output


def _of_documents(row: ops.RowPositions, packed: Documents) -> ops.RowPositions:
    """Unpack packed rows: one row per document, for LSH attention, which sorts whole rows."""
    count = row.positions.shape[1]
    origin, place = packed.table[:, 0] // count, packed.table % count
    prefix = None if row.prefix is None else row.prefix[origin]
    visible = None if row.given is None else row.given[origin[:, None, None], place[:, :, None], place[:, None, :]]
    return ops.RowPositions(packed.lengths, packed.apart(row.positions), row.mask, prefix, visible)


def _itself(sites: Sites, q: Tensor) -> Tensor:
    """Return a score term (B or 1, 1, N, M) that is very negative at the query's own key.

    So a query attends to its own key only if it sees no other.
    """
    same = sites.query[:, None, :, None] == sites.key[:, None, None, :]
    return torch.zeros(same.shape, dtype=q.dtype, device=q.device).masked_fill(same, ops.SELF)
