"""Kinds of GGUF blocks of fewer than four bits per weight that have one scale per 32 weights, read in four bits.

A block of 256 weights has a factor d in fp16. Its numbers are few: -1, 0 and 1 (TQ1_0, TQ2_0), or entries of a table
("grid") of vectors of several numbers, with signs (IQ2_XXS, IQ3_XXS, IQ3_S) or an offset (IQ1_S). So weights are stored
as indices of at most 16 levels, with a scale d (2 s + 1) / 2^k per 32 weights and s in 3 or 4 bits, which is rounded to
fp16, with a relative error of at most 2^-11; the scale d is exact. The library gguf holds the grids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.interop.mapping.levels import both_signs, indices_of
from qkv.interop.mapping.narrow import GROUP, NarrowWeights
from qkv.tokenizers.gguf.file import library

_BLOCK = 256
_GROUPS = _BLOCK // GROUP


class GridKind(NamedTuple):
    """Kind of block. size: its bytes; factor: byte of d; scales: function from blocks (N, size) to the factors of d
    (N, 8); levels: numbers that the weights of a group are multiples of its scale by, or None: -8 to 7.
    """

    size: int
    factor: int
    scales: Callable[[Tensor], Tensor]
    levels: Tensor | None = None


def read_grid(kind: str, raw: Tensor, shape: tuple[int, ...]) -> NarrowWeights:
    """Read a matrix (O, I) of blocks of a ``kind`` in ``GRIDS`` from its bytes ``raw``."""
    gguf, grid = library(), GRIDS[kind]
    blocks = raw.view(-1, grid.size)
    whole = torch.from_numpy(gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind]))
    factor = blocks[:, grid.factor : grid.factor + 2].contiguous().view(torch.float16).to(torch.float32)
    unit = factor * grid.scales(blocks)
    numbers = (whole.view(-1, _GROUPS, GROUP) / torch.where(unit == 0, 1.0, unit)[..., None]).round().to(torch.int8)
    rows, columns = shape
    numbers = numbers if grid.levels is None else indices_of(numbers, grid.levels)
    scale = unit.to(torch.float16).reshape(rows, columns // GROUP)
    return NarrowWeights(numbers.reshape(rows, columns), scale, None, 4, grid.levels)


def _words(raw: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
    return raw[:, begin:end].contiguous().view(dtype)


def _iq1_s(raw: Tensor) -> Tensor:
    return (2 * (_words(raw, 34, 50, torch.int16).int() >> 12 & 7) + 1) / 8


def _iq2_xxs(raw: Tensor) -> Tensor:
    return (2 * (_words(raw, 2, 66, torch.int32)[:, 1::2] >> 28 & 15) + 1) / 8


def _iq3_xxs(raw: Tensor) -> Tensor:
    return (2 * (_words(raw, 66, 98, torch.int32) >> 28 & 15) + 1) / 4


def _iq3_s(raw: Tensor) -> Tensor:
    return 2 * torch.stack((raw[:, 106:] & 15, raw[:, 106:] >> 4), 2).flatten(1).to(torch.float32) + 1


def _ones(raw: Tensor) -> Tensor:
    return torch.ones(len(raw), _GROUPS)


GRIDS = {
    "TQ1_0": GridKind(54, 52, _ones),
    "TQ2_0": GridKind(66, 64, _ones),
    "IQ1_S": GridKind(50, 0, _iq1_s, both_signs((1, 7, 9))),
    "IQ2_XXS": GridKind(66, 0, _iq2_xxs, both_signs((8, 25, 43))),
    "IQ3_XXS": GridKind(98, 0, _iq3_xxs, both_signs((4, 12, 20, 28, 36, 44, 52, 62))),
    "IQ3_S": GridKind(110, 0, _iq3_s, both_signs(range(1, 16, 2))),
}
"""Kinds of block by name."""
