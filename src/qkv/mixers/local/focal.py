"""Focal modulation: a product with gated contexts of growing size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.mixers.local.grids import CONVOLUTIONS, grid_of
from qkv.mixers.whole_rows import each_row
from qkv.spec.mixers.grids.focal import FocalModulation as Spec
from qkv.spec.register import implements


@implements(Spec)
class FocalModulation(Branch):
    """Focal modulation W_o norm(q ⊙ W_c Σ_l g_l ⊙ c_l) (FocalNet, Yang et al. 2022). Bidirectional, stateless.

    x (B, N, D) ─ input ─┬ q (B, N, D) ───────────────────────────────────────────── ⊙ ─ norm ─ output ─ (B, N, D)
                         ├ c_0 (B, N, D) ─ convolutions, mean ─ c_1, …, c_{L+1} ─┐   │
                         └ g (B, N, L + 1) ───────────────────────────────────── Σ ─ context
    """

    causal = False
    rewindable = False

    def __init__(self, part: Spec, width: int):
        super().__init__(part, width)
        self.part, self.axes = part, part.axes or 1
        self.input, self.context = Linear(width, 2 * width + part.levels + 1), Linear(width, width)
        sizes = [part.window + 2 * level for level in range(part.levels)]
        self.levels = nn.ModuleList(
            CONVOLUTIONS[self.axes](width, width, size, padding=size // 2, groups=width, bias=False) for size in sizes
        )
        self.norm, self.output = build_norm(part.norm, width), Linear(width, width)

    def layouts(self) -> Layouts:
        width = self.width
        maps = {"input": matrix(query=width, context=width, gates=self.part.levels + 1)}
        return {**maps, **{f"levels.{i}": WHOLE for i in range(self.part.levels)}}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Apply the branch. Raises ``UserError`` for a grid of another number of axes."""
        query, rest = self.input(x).tensor_split((self.width,), -1)
        modulator = self.context(
            each_row(rest, context, lambda rows, real: self._contexts(rows, real, context), self.part.kind)
        )
        return self.output(self.norm(query * modulator, context)), state

    def _contexts(self, rows: Tensor, real: Tensor | None, context: Context) -> Tensor:
        """Return the sum of the gated contexts of ``rows`` (R, M, D + L + 1), c_0 and the gates; 0 before the grid."""
        sizes, leading = grid_of(context, rows, self.axes, self.part.kind)
        first, gates = rows[:, leading:].split((self.width, self.part.levels + 1), -1)
        if not first.numel():
            return rows[..., : self.width]
        valid = None if real is None else real[:, leading:].to(rows.dtype)[:, None]
        level, total = first.mT, torch.zeros_like(first)
        for i, convolution in enumerate(self.levels):
            level = F.gelu(convolution(level.unflatten(2, sizes)).flatten(2))
            level = level if valid is None else level * valid
            total = total + level.mT * gates[..., i : i + 1]
        if valid is None:
            mean = level.mean(2)
        else:
            mean = level.sum(2) / valid.sum(2).clamp(min=1)
        total = total + F.gelu(mean)[:, None] * gates[..., -1:]
        total = total / (self.part.levels + 1) if self.part.mean else total
        return torch.cat((torch.zeros_like(rows[:, :leading, : self.width]), total), 1)

    def ending(self) -> nn.Module:
        return self.output
