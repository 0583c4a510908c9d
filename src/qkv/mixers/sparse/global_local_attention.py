"""Longformer attention: a symmetric window, plus global positions that attend to all and are attended by all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins.global_local import Places, gather_rows, place, windowed
from qkv.ops.masks import Full, Sites
from qkv.spec.mixers import sparse_attention as spec
from qkv.spec.register import implements


@implements(spec.GlobalLocalAttention)
class GlobalLocalAttention(Branch):
    """Longformer's attention: a window around each position, and some global positions (Beltagy et al. 2020).

    Local queries attend to their window and the global keys; global queries, with other projections, to all keys.

        x (B, N, D) ─┬─ qkv ── q, k, v (B, H, N, Dk) ────────── window ∪ global ─┐
                     ├─ global_key_value ── k', v' (B, H, N, Dk) ─┐              ├─ output ─ (B, N, D)
          x at g ────┴─ global_query ── q' (B, H, g, Dk) ─────────┴─ all ─ at g ─┘

    Bidirectional and stateless.
    """

    causal = False

    def __init__(self, part: spec.GlobalLocalAttention, width: int):
        super().__init__(part, width)
        self.part = part
        self.head_dim = part.head_width(width)
        size = part.num_heads * self.head_dim
        self.qkv = Linear(width, 3 * size, bias=part.bias)
        self.global_query = Linear(width, size, bias=part.bias)
        self.global_key_value = Linear(width, 2 * size, bias=part.bias)
        self.output = Linear(size, width, bias=part.bias)
        self.scale = self.head_dim**-0.5

    def layouts(self) -> Layouts:
        heads = self.part.num_heads * self.head_dim, self.head_dim
        query, key_value = matrix(q=heads), matrix(k=heads, v=heads)
        return {
            "qkv": matrix(q=heads, k=heads, v=heads),
            "global_query": query,
            "global_key_value": key_value,
            "output": from_heads(*heads),
        }

    def points(self) -> Points:
        return standard("q", "k", "v", "head_outputs")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        places = context.once(("global places", self.part.num_global), lambda: self._places(context))
        dropout = self.part.dropout if self.training else 0.0
        heads = zip(("q", "k", "v"), self._heads(self.qkv(x)), strict=True)
        q, k, v = (self.offer(context.tap, name, value) for name, value in heads)
        out = windowed(q, k, v, places, self.part.window, self.part.block, (self.scale, dropout))
        if places.index.shape[1]:
            out = self._with_global(out, x, places, dropout)
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _with_global(self, out: Tensor, x: Tensor, places: Places, dropout: float) -> Tensor:
        """Replace the outputs of global positions in ``out`` (B, H, N, Dk) by their attention over all keys."""
        (q,) = self._heads(self.global_query(gather_rows(x, places.index)))
        k, v = self._heads(self.global_key_value(x))
        seen = attention(q, k, v, AttentionProblem(Full(), _of_global(places, x.shape[0]), self.scale, dropout=dropout))
        seen = torch.where(places.picked()[:, None, :, None], seen, gather_rows(out, places.index))
        index = places.index.expand(x.shape[0], -1)[:, None, :, None].expand_as(seen)
        return out.scatter(2, index, seen)

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split heads: (B, N, n H Dk) -> n tensors (B, H, N, Dk)."""
        return tuple(
            t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for t in x.split(self.part.num_heads * self.head_dim, -1)
        )

    def _places(self, context: Context) -> Places:
        """Return the positions of the call's tokens, with the global positions selected."""
        positions, valid = context.positions, context.valid
        key = positions if valid is None else positions.masked_fill(~valid, -1)
        sites = Sites(positions, key, context.segments, context.segments, given=context.visible)
        number = self._number(context)
        chosen = torch.zeros_like(key, dtype=torch.bool) if number is None else (key >= 0) & (key < number)
        in_place = _in_place(positions)
        if number is None:
            count = 0
        elif isinstance(number, int) and in_place:
            count = min(number, positions.shape[1])
        else:
            count = int(chosen.sum(1).max()) if chosen.numel() else 0
        return place(chosen, count, sites, in_place or _consecutive(positions, context.segments))

    def _number(self, context: Context) -> Tensor | int | None:
        """Return the number of first positions that are global: for all rows, or per row (B, 1); None: none."""
        if self.part.num_global is not None:
            return self.part.num_global
        return None if context.prefix is None else context.prefix[:, None]

    def ending(self) -> nn.Module:
        return self.output


def _of_global(places: Places, rows: int) -> Sites:
    """Return the positions of the global queries of each row and of all keys."""
    sites, index = places.sites, places.index.expand(rows, -1)

    def at(t: Tensor) -> Tensor:
        return t.expand(rows, -1).gather(1, index)

    visible = (
        None if sites.given is None else sites.given.gather(1, index[..., None].expand(-1, -1, sites.given.shape[2]))
    )
    segments = None if sites.query_segment is None else at(sites.query_segment)
    return Sites(at(sites.query), sites.key, segments, sites.key_segment, given=visible)


def _in_place(positions: Tensor) -> bool:
    """Return True if the vector at index i has position i; assumed on the meta device, which has no values."""
    return positions.is_meta or torch.equal(
        positions, torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    )


def _consecutive(positions: Tensor, segments: Tensor | None) -> bool:
    """Return True if positions increase by 1 within each document."""
    follows = positions.diff(dim=1) == 1
    if segments is not None:
        follows = follows | (segments.diff(dim=1) != 0)
    return bool(follows.all())
