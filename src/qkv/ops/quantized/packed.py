"""Quantised matrix in the form in which it is stored and read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PackedMatrix(NamedTuple):
    """Matrix W (O, I) in ``bits`` 16, 8 or 4.

    stored, 16 bits: (O, I) in bf16. 8 bits: (T, B, 8, 16, 4) in int8, for T tiles of 16 rows, B blocks of 32 weights,
    8 fours of a block, 16 rows, 4 weights. 4 bits: (T, B, 4, 16, 4) in uint8, where the byte of weight i of a block, i
    below 16, holds it in its lower half and weight i + 16 in its upper half, each as 8 + a number from -8 to 7. So one
    vector of a processor holds four weights of each row of a tile, and a matrix is read in the order of its addresses.

    scale: (T, G, 16) in bf16, one per row and ``group`` weights, or 0: per row; None in bf16. Rows and weights beyond
    O and I are zeros.
    """

    stored: Tensor
    scale: Tensor | None
    bits: int
    outer: int
    inner: int
    group: int = 0

    @property
    def shape(self) -> torch.Size:
        """Shape (O, I) of the matrix."""
        return torch.Size((self.outer, self.inner))

    @property
    def device(self) -> torch.device:
        """Device of the matrix."""
        return self.stored.device
