"""Numbers of four-bit weights that are indices of a table of 16 levels, and the shared exponents of MXFP4.

MXFP4: a level is twice a number of e2m1, which has a sign, two bits of exponent and one of mantissa; 32 levels share a
power of two in e8m0, a byte e for 2^(e - 127) (Open Compute Project, "OCP Microscaling Formats (MX) Specification",
2023). IQ4_NL, of llama.cpp: unevenly spaced levels, closer near 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_NAN = 255
"""Byte of e8m0 that is not a number."""


def level_table(levels: Iterable[int]) -> Tensor:
    """Return the table (16) in int8 of at most 16 ``levels``, whose last one fills it."""
    several = list(levels)
    return torch.tensor(several + several[-1:] * (16 - len(several)), dtype=torch.int8)


def both_signs(levels: Iterable[int]) -> Tensor:
    """Return the table (16) of ``levels`` and of their negatives."""
    several = list(levels)
    return level_table([*several, *(-level for level in several)])


E2M1 = both_signs((0, 1, 2, 3, 4, 6, 8, 12))
"""Twice the numbers of e2m1, by their bits."""
IQ4_NL = level_table((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
"""Levels of IQ4_NL and IQ4_XS."""


def indices_of(numbers: Tensor, levels: Tensor) -> Tensor:
    """Return the index in ``levels`` (16) of each of the ``numbers``, in int8."""
    table = torch.zeros(256, dtype=torch.int8)
    table[levels.int() + 128] = torch.arange(16, dtype=torch.int8)
    return table[numbers.int() + 128]


def half_powers(exponents: Tensor) -> Tensor:
    """Compute 2^(e - 128) in bf16, without rounding, from bytes e of e8m0: the scales of ``E2M1``. 255 gives NaN."""
    e = exponents.to(torch.int16)
    # The two smallest powers are subnormal: their only bit is in the seven bits of the mantissa.
    bits = torch.where(e > 1, (e - 1) << 7, 32 << e.clamp(max=1))
    return torch.where(e == _NAN, 0x7FC0, bits).to(torch.int16).view(torch.bfloat16)
