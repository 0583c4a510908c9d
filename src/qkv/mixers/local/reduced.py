"""Attention to keys and values of a coarser grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.mixers.local.grids import CONVOLUTIONS, grid_of
from qkv.mixers.whole_rows import each_row
from qkv.ops import windows
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Full, Sites
from qkv.spec.mixers.grids.reduced import ReducedAttention as Spec
from qkv.spec.register import implements


@implements(Spec)
class ReducedAttention(Branch):
    """Attention of all N positions to M blocks of positions (PVT, Wang et al. 2021). Bidirectional, stateless.

    x (B, N, D) ─┬─ query ─ (B, H, N, Dk) ─────────────────────────────── attention ─ output ─ (B, N, D)
                 └─ blocks ─ convolution ─ norm ─ key_value ─ (B, H, M, Dk) ─┘
    """

    causal = False
    rewindable = False

    def __init__(self, part: Spec, width: int):
        super().__init__(part, width)
        self.part, self.axes, self.head_dim = part, part.axes or 1, part.head_width(width)
        self.features = part.num_heads * self.head_dim
        self.query = Linear(width, self.features, bias=part.bias)
        self.key_value = Linear(width, 2 * self.features, bias=part.bias)
        self.reduction = CONVOLUTIONS[self.axes](width, width, part.ratio, part.ratio)
        self.norm = build_norm(part.norm, width)
        self.output = Linear(self.features, width)

    def layouts(self) -> Layouts:
        size = self.features, self.head_dim
        maps = {"query": matrix(q=size), "key_value": matrix(k=size, v=size), "output": from_heads(*size)}
        return {**maps, "reduction": WHOLE}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Apply the branch. Raises ``UserError`` for a grid of another number of axes."""
        mixed = each_row(x, context, lambda rows, real: self._mixed(rows, real, context), self.part.kind)
        return self.output(mixed), state

    def _mixed(self, rows: Tensor, real: Tensor | None, context: Context) -> Tensor:
        """Return the outputs of all heads (R, N, H Dk) for ``rows`` (R, N, D)."""
        read, places = self._read(rows, real, context)
        q = self._heads(self.query(rows), 1)[0]
        if not read.shape[1] or not rows.numel():
            return rows.new_zeros(*rows.shape[:2], self.features)
        k, v = self._heads(self.key_value(read), 2)
        dropout = self.part.dropout if self.training else 0.0
        sites = Sites(torch.arange(rows.shape[1], device=rows.device)[None], places)
        problem = AttentionProblem(Full(), sites, self.head_dim**-0.5, dropout=dropout)
        return attention(q, k, v, problem).transpose(1, 2).flatten(2)

    def _heads(self, x: Tensor, count: int) -> Tensor:
        """Split x (R, M, count H Dk) into ``count`` tensors (R, H, M, Dk), stacked."""
        return x.unflatten(-1, (count, -1, self.head_dim)).permute(2, 0, 3, 1, 4)

    def _read(self, rows: Tensor, real: Tensor | None, context: Context) -> tuple[Tensor, Tensor]:
        """Return (vectors (R, M, D) that are projected to keys and values, their positions (1 or R, M); -1: hidden)."""
        sizes, leading = grid_of(context, rows, self.axes, self.part.kind)
        blocks = [side // self.part.ratio for side in sizes]
        cells, first = rows[:, leading:].unflatten(1, sizes), rows[:, :leading]
        if min(blocks) and rows.shape[0]:
            reduced = self.reduction(cells.movedim(-1, 1)).flatten(2).mT
        else:
            reduced = rows[:, :0]
        read = torch.cat((first, self.norm(reduced, context)), 1)
        places = torch.arange(read.shape[1], device=rows.device)[None]
        if real is None:
            return read, places
        whole = real[:, leading:].unflatten(1, sizes)
        for axis, count in enumerate(blocks, 1):
            whole = whole.narrow(axis, 0, count * self.part.ratio)
        seen = windows.windows_of(whole[..., None], self.part.ratio)[..., 0].all(-1) if min(blocks) else whole[:, :0]
        seen = torch.cat((real[:, :leading], seen.flatten(1)), 1)
        return read, torch.where(seen, places, -1)

    def ending(self) -> nn.Module:
        return self.output
