"""Rows that mixers without a mask read as a whole: without padding, one per packed document."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.ops.documents import documents
from qkv.system.errors import UserError


def each_row(x: Tensor, context: Context, mix: Callable[[Tensor, Tensor | None], Tensor], kind: str) -> Tensor:
    """Apply ``mix`` to each row of x (B, N, D), or to each document of packed rows; return (B, N, E).

    mix(rows (R, M, D), real (R, M)) -> (R, M, E); rows are 0 at padding, where ``real`` is False; None: no padding.
    kind: kind of the mixer, for error messages. Raises ``UserError`` for rows with a table of visible keys, and for
    packed documents on a grid.
    """
    if context.visible is not None:
        raise UserError(
            f"{kind!r} mixes all positions of a row, so it cannot apply a table of visible keys; use attention"
        )
    if context.segments is None:
        real = context.valid
        return mix(x if real is None else x.masked_fill(~real[..., None], 0), real)
    if context.grid is not None:
        raise UserError(
            f"{kind!r} mixes neighbours on a grid, and packed documents have none; pass each document as its own row"
        )
    valid, segments = context.valid, context.segments
    packed = context.once(
        "documents of rows", lambda: documents(segments if valid is None else segments.masked_fill(~valid, -1))
    )
    real = torch.arange(packed.table.shape[1], device=x.device) < packed.lengths[:, None]
    rows = packed.apart(x if valid is None else x.masked_fill(~valid[..., None], 0))
    return packed.together(mix(rows.masked_fill(~real[..., None], 0), real))
