"""Quantised matrix in the form in which it is stored and read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PackedMatrix(NamedTuple):
    """Matrix W (O, I) in ``bits`` 16, 8 or 4.

    stored: 16: (O, I) in bf16.   8: (O, J) in int8, J = I rounded up to a multiple of 32, with zeros.   4: (O, J / 2)
    in uint8; byte i of 16 holds weight i of 32 in its lower half and weight i + 16 in its upper half, as numbers of
    four bits in two's complement. scale: (O, G) in bf16, one per ``group`` weights, or 0: per row; None in bf16.
    inner: I.
    """

    stored: Tensor
    scale: Tensor | None
    bits: int
    inner: int
    group: int = 0

    @property
    def shape(self) -> torch.Size:
        """Shape (O, I) of the matrix."""
        return torch.Size((self.stored.shape[0], self.inner))

    @property
    def device(self) -> torch.device:
        """Device of the matrix."""
        return self.stored.device
