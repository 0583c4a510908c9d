"""Front end for text whose tokens have further marks, such as boxes on a page or cells of a table."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.frontends.border import check_mark, check_marks
from qkv.frontends.text import TextFrontend
from qkv.layers.context import Context
from qkv.layers.layout import ROWS, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.marks import MarkedTokens
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.marked_text import MarkedText

_SIDES = ("x", "y", "height", "width")


@implements(MarkedText)
class MarkedTextFrontend(TextFrontend):
    """Front end for marked text: token ids (B, N) with marks (B, N, K) -> vectors (B, N, D).

    As ``TextFrontend``, with the vectors of the marks: T_k[m_k] of ``marks``, those of a ``box``, and those that are
    ``appended`` to the token's vector before a linear map. Marks that are not given are 0.
    """

    part: MarkedText

    def __init__(self, part: MarkedText, stack: Stack, width: int, table: nn.Parameter | None = None):
        super().__init__(part, stack, width, table)
        size = part.vector_width(part.placed_width(width))
        self.marks = nn.ParameterList(nn.Parameter(torch.zeros(rows, size)) for rows in part.marks)
        self.box = nn.ParameterDict(
            {side: nn.Parameter(torch.zeros(part.box, size)) for side in _SIDES} if part.box else {}
        )
        self.appended = nn.ParameterList(nn.Parameter(torch.zeros(each.rows, each.width)) for each in part.appended)
        joined = size + sum(each.width for each in part.appended)
        self.map = Linear(joined, size) if part.appended else None

    def layouts(self) -> Layouts:
        names = [f"{name}.{i}" for name in ("marks", "appended") for i in range(len(getattr(self, name)))]
        return {**super().layouts(), **dict.fromkeys((*names, *(f"box.{side}" for side in self.box)), ROWS)}

    def initialise(self, std: float) -> None:
        super().initialise(std)
        for vectors in (*self.marks, *self.box.values(), *self.appended):
            nn.init.normal_(vectors, std=std)

    def check(self, signal: Signal) -> None:
        super().check(signal)
        marks = MarkedTokens.of(signal).marks
        if marks is None:
            return
        check_marks(marks, (*signal.values.shape, self.part.num_marks), self.device)
        added, box, appended = self._split(signal)
        sizes = (*self.part.marks, *(each.rows for each in self.part.appended))
        for i, (mark, size) in enumerate(zip((*added, *appended), sizes, strict=True)):
            check_mark(mark, size, f"mark {i}")
        if self.part.box:
            left, upper, right, lower = box
            check_mark(torch.stack(box), self.part.box, "a coordinate of the box")
            check_mark(torch.stack((right - left, lower - upper)), self.part.box, "a side of the box")

    def forward(self, signal: Signal, context: Context) -> Tensor:
        marks = MarkedTokens.of(signal).marks
        if marks is not None and self.part.cells and context.arrival is None:
            context = replace(context, positions=_within_cells(marks[..., :2], context), memo={})
        return super().forward(signal, context)

    def token_vectors(self, signal: Signal) -> Tensor:
        x = super().token_vectors(signal)
        if self.map is None:
            return x
        marks = zip(self._split(signal)[2], self.appended, strict=True)
        vectors = [F.embedding(mark, table) for mark, table in marks]
        return self.map(torch.cat((x, *vectors), -1))

    def embedded(self, signal: Signal, context: Context) -> Tensor:
        x = super().embedded(signal, context)
        marks, box, _ = self._split(signal)
        for table, mark in zip(self.marks, marks, strict=True):
            x = x + F.embedding(mark, table)
        if box:
            left, upper, right, lower = box
            sides = ("x", left), ("y", upper), ("x", right), ("y", lower)
            for side, mark in (*sides, ("height", lower - upper), ("width", right - left)):
                x = x + F.embedding(mark, self.box[side])
        return x

    def _split(self, signal: Signal) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return the marks (B, N) that are added, those of a box, and those that are appended."""
        marks, count = MarkedTokens.of(signal).marks, self.part.num_marks
        several = [torch.zeros_like(signal.values)] * count if marks is None else list(marks.unbind(-1))
        first, last = len(self.marks), count - len(self.appended)
        return several[:first], several[first:last], several[last:]


def _within_cells(cell: Tensor, context: Context) -> Tensor:
    """Return the position (B, N) of each token in its cell, the tokens with equal marks ``cell`` (B, N, 2)."""
    positions = context.positions.expand(cell.shape[:2])
    same = (cell[:, :, None] == cell[:, None]).all(-1)
    if context.segments is not None:
        same = same & (context.segments[:, :, None] == context.segments[:, None])
    first = positions[:, None].masked_fill(~same, torch.iinfo(positions.dtype).max).amin(-1)
    return positions - first
