"""Storage format of quantised matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PackedMatrix(NamedTuple):
    """Matrix W (O, I), quantised to 16, 8 or 4 ``bits`` per weight.

    stored, 16 bits: (O, I) in bf16. 8 bits: (T, B, 8, 16, 4) in int8: T tiles of 16 rows, B blocks of 32 weights, 8
    groups of 4 weights in a block, 16 rows, 4 weights. 4 bits: (T, B, 4, 16, 4) in uint8. Byte i < 16 of a block and
    row holds weight i in its lower half and weight i + 16 in its upper half, each as 8 + a number from -8 to 7. So one
    processor vector holds four weights of each row of a tile, and a matrix is read in the order of its addresses.
    scale: (T, G, 16) in bf16 or fp16, one per row and ``group`` weights; ``group`` 0: one per row; None for 16 bits.
    Scales in fp16 belong to groups of 32. Rows beyond O and weights beyond I are zeros.
    minimum: (T, G, 16) in fp16, added to the weights of a group, or None. Scales are then fp16, too, and in 4 bits the
    numbers are from 0 to 15: w = scale · number + minimum, the form of llama.cpp's Q4_1.
    levels: (16) in int8, or None. Half bytes of 4 bits are then indices of levels, w = scale · level, the form of MXFP4
    and IQ4_NL; there are scales of groups and no minimums.
    """

    stored: Tensor
    scale: Tensor | None
    bits: int
    outer: int
    inner: int
    group: int = 0
    minimum: Tensor | None = None
    levels: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape (O, I) of the matrix."""
        return torch.Size((self.outer, self.inner))

    @property
    def device(self) -> torch.device:
        """Device of the matrix."""
        return self.stored.device
