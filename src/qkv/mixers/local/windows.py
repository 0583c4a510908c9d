"""Attention in windows of a grid, or of a sequence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, LookupTable, from_heads, matrix, vector
from qkv.layers.linear.linear import Linear
from qkv.mixers.whole_rows import each_row
from qkv.ops import windows
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Full, Sites
from qkv.spec.mixers.grids import windows as spec
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError

_STEEPEST = math.log(100)
"""Largest logarithm of the factor of cosines (Liu et al. 2022)."""


@implements(spec.NoWindowBias)
class NoWindowBias(nn.Module):
    """No bias."""

    def __init__(self, part: spec.NoWindowBias, window: int, axes: int, heads: int):
        super().__init__()

    def forward(self) -> Tensor | None:
        return None


@implements(spec.TableBias)
class TableBias(LookupTable):
    """Learned bias of each offset, table ((2 M - 1)^n, H), initialised to 0 (Liu et al. 2021)."""

    def __init__(self, part: spec.TableBias, window: int, axes: int, heads: int):
        super().__init__()
        self.window, self.axes = window, axes
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** axes, heads))

    def forward(self) -> Tensor:
        """Compute the biases of the pairs of a window (H, M^n, M^n)."""
        away = windows.offsets(self.window, self.axes, self.table.device) + self.window - 1
        index = away[..., 0]
        for axis in range(1, self.axes):
            index = index * (2 * self.window - 1) + away[..., axis]
        return F.embedding(index, self.table).permute(2, 0, 1)


@implements(spec.MappedBias)
class MappedBias(nn.Module):
    """Bias of each offset from an MLP of its logarithm, 16 σ(W2 relu(W1 o + b1)) (Liu et al. 2022)."""

    def __init__(self, part: spec.MappedBias, window: int, axes: int, heads: int):
        super().__init__()
        self.window, self.axes, self.trained = window, axes, part.trained_window or window
        self.up, self.down = Linear(axes, part.hidden), Linear(part.hidden, heads, bias=False)

    def forward(self) -> Tensor:
        """Compute the biases of the pairs of a window (H, M^n, M^n)."""
        away = windows.offsets(self.window, self.axes, self.up.weight.device).to(self.up.weight.dtype)
        scaled = 8 * away / max(1, self.trained - 1)
        logs = scaled.sign() * (scaled.abs() + 1).log2() / math.log2(8)
        return 16 * self.down(self.up(logs).relu()).sigmoid().permute(2, 0, 1)


@implements(spec.WindowAttention)
class WindowAttention(Branch):
    """Attention in windows of M positions along each of n axes (Swin, Liu et al. 2021). Bidirectional, stateless.

    x (B, N, D) ─ windows ─ (B W, M^n, D) ─ qkv ─ attention with bias ─ output ─ (B, N, D)
    """

    causal = False
    rewindable = False

    def __init__(self, part: spec.WindowAttention, width: int):
        super().__init__(part, width)
        self.part, self.axes, self.head_dim = part, part.axes or 1, part.head_width(width)
        self.features = part.num_heads * self.head_dim
        apart = part.bias and not part.key_bias
        self.qkv = Linear(width, 3 * self.features, bias=part.bias and not apart)
        self.query_bias, self.value_bias = (
            nn.Parameter(torch.zeros(self.features)) if apart else None for _ in range(2)
        )
        self.output = Linear(self.features, width)
        self.steepness = nn.Parameter(torch.full((part.num_heads,), math.log(10))) if part.scores == "cosine" else None
        self.relative: Any = implementation(part.relative, "qkv.mixers")(
            part.relative, part.window, self.axes, part.num_heads
        )

    def layouts(self) -> Layouts:
        size = self.features, self.head_dim
        layouts = {"qkv": matrix(q=size, k=size, v=size), "output": from_heads(*size)}
        biases = {"query_bias": vector("q", *size), "value_bias": vector("v", *size)}
        return {**layouts, **biases, "steepness": vector("q", self.part.num_heads, 1)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Apply the branch. Raises ``UserError`` for a grid of another number of axes, or with leading positions."""
        sizes, leading = (x.shape[1:2], 0) if context.grid is None else context.grid
        if len(sizes) != self.axes or leading:
            place = "a sequence" if context.grid is None else f"a grid of {len(sizes)} axes after {leading} positions"
            raise UserError(
                f"{self.spec.kind!r} has windows of {self.axes} axes, without positions before the grid, but the "
                f"positions are on {place}"
            )

        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            if context.grid is None:
                seen = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device) if real is None else real
                return self._mixed(rows, seen, False)
            seen = None if real is None else real.unflatten(1, sizes)
            return self._mixed(rows.unflatten(1, sizes), seen, min(sizes) <= self.part.window).flatten(1, -2)

        return each_row(x, context, mix, self.spec.kind), state

    def _mixed(self, cells: Tensor, real: Tensor | None, covered: bool) -> Tensor:
        """Mix cells (B, *sizes, D) in windows.

        ``real`` (B, *sizes): visible cells, None: all of them and those that fill up windows; ``covered``: a window
        covers an axis of the grid, and is not shifted.
        """
        if not cells.numel():
            return cells
        size, shift = self.part.window, 0 if covered else self.part.shift
        full = windows.turned(windows.filled(cells, size), shift)
        parts = windows.windows_of(full, size)
        out = self._attended(parts.flatten(0, 1), self._seen(full, real, (shift, parts.shape[1])))
        back = windows.cells_of(out.unflatten(0, parts.shape[:2]), size, tuple(full.shape[1:-1]))
        back = windows.turned(back, -shift)
        for axis, side in enumerate(cells.shape[1:-1], 1):
            back = back.narrow(axis, 0, side)
        return back

    def _seen(self, full: Tensor, real: Tensor | None, place: tuple[int, int]) -> Tensor | None:
        """Return a mask (B W, M^n, M^n), True where a query sees a key; None: all are visible.

        ``place``: shift, number of windows of a row.
        """
        size, (shift, count), seen = self.part.window, place, None
        if shift:
            seen = windows.neighbours_after_turn(tuple(full.shape[1:-1]), size, shift, full.device)[None]
        if real is not None:
            keys = windows.windows_of(windows.turned(windows.filled(real[..., None].long(), size), shift), size)
            visible = keys[..., 0].bool()[:, :, None]
            seen = visible if seen is None else seen & visible
        if seen is None:
            return None
        length = size**self.axes
        return seen.expand(len(full), count, length, length).flatten(0, 1)

    def _attended(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Compute attention within each window x (B W, M^n, D) -> (B W, M^n, D)."""
        mapped = self.qkv(x)
        if self.query_bias is not None and self.value_bias is not None:
            mapped = mapped + torch.cat((self.query_bias, self.query_bias.new_zeros(self.features), self.value_bias))
        q, k, v = mapped.unflatten(-1, (3, -1, self.head_dim)).permute(2, 0, 3, 1, 4)
        scale = self.head_dim**-0.5
        if self.steepness is not None:
            q, k, scale = F.normalize(q, dim=-1) * self._factors(q), F.normalize(k, dim=-1), 1.0
        steps, bias = torch.arange(x.shape[1], device=x.device)[None], self.relative()
        problem = AttentionProblem(
            Full(),
            Sites(steps, steps, aligned=seen is None, given=seen),
            scale,
            dropout=self.part.dropout if self.training else 0.0,
            added=None if bias is None else bias[None].to(q.dtype),
        )
        return self.output(attention(q, k, v, problem).transpose(1, 2).flatten(2))

    def _factors(self, q: Tensor) -> Tensor:
        """Return the factor of the cosines of each head (H, 1, 1)."""
        assert self.steepness is not None
        return self.steepness.clamp(max=_STEEPEST).exp()[:, None, None].to(q.dtype)

    def ending(self) -> nn.Module:
        return self.output
