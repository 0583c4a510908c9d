"""Blocks of quantised weights in GGUF files, read as numbers with a scale and a minimum per 32 weights of a row.

w = d q, d (q - 8) or d q + m with d and m in fp16 are read exactly (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0), as are indices of
levels with a scale in fp16 or a power of two (IQ4_NL, MXFP4). In Q4_K, Q5_K and IQ4_XS, d and m are products of an fp16
number and a 6-bit number, which are rounded to fp16, with a relative error of at most 2^-11. ``qkv.interop.gguf.grids``
reads kinds with tables of several weights. All other kinds are rounded to 8 bits with a scale per 32 weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.interop.gguf.grids import GRIDS, read_grid
from qkv.interop.mapping.levels import E2M1, IQ4_NL, half_powers
from qkv.interop.mapping.narrow import GROUP, NarrowWeights
from qkv.ops.quantized.reference import round_to_eight

EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "IQ4_NL", "TQ1_0", "TQ2_0")
"""Kinds whose values are read without rounding."""


def read_blocks(kind: str, raw: Tensor, shape: tuple[int, ...]) -> NarrowWeights | None:
    """Read a matrix (O, I) of blocks of a ``kind`` from its bytes ``raw``; return None for an unsupported kind."""
    if kind in GRIDS:
        return read_grid(kind, raw, shape)
    if kind not in _READERS:
        return None
    bits, size, read = _READERS[kind]
    numbers, scale, minimum = read(raw.view(-1, size))
    rows, columns = shape[0], shape[1]
    groups = rows, columns // GROUP
    lowest = None if minimum is None else minimum.reshape(groups)
    levels = _LEVELS.get(kind)
    return NarrowWeights(numbers.reshape(rows, columns), scale.reshape(groups), lowest, bits, levels)


def _halves(raw: Tensor, begin: int, count: int = 1) -> Tensor:
    """Read ``count`` numbers in fp16 of each block, from byte ``begin`` on."""
    return raw[:, begin : begin + 2 * count].contiguous().view(torch.float16)


def _nibbles(raw: Tensor) -> Tensor:
    """Split bytes (N, 16) into numbers (N, 32): lower halves, then upper halves."""
    return torch.cat((raw & 15, raw >> 4), 1).to(torch.int8)


def _fifth_bits(raw: Tensor) -> Tensor:
    """Read bit i of the four bytes of each block as 16 times a number 0 or 1 (N, 32)."""
    bits = raw[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1).to(torch.int8) << 4


def _q4_0(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return _nibbles(raw[:, 2:]) - 8, _halves(raw, 0), None


def _q4_1(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return _nibbles(raw[:, 4:]), _halves(raw, 0), _halves(raw, 2)


def _q5_0(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])) - 16, _halves(raw, 0), None


def _q5_1(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _halves(raw, 0), _halves(raw, 2)


def _q8_0(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return raw[:, 2:].contiguous().view(torch.int8), _halves(raw, 0), None


def _by_six_bits(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Read scales and minimums (N, 8) in fp16 from the first 16 bytes of K blocks: d, dmin and 16 6-bit numbers."""
    factors = _halves(raw, 0, 2).to(torch.float32)
    low, middle, high = raw[:, 4:16].unflatten(1, (3, 4)).unbind(1)
    scale = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), 1)
    minimum = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), 1)
    return (factors[:, :1] * scale).to(torch.float16), (-factors[:, 1:] * minimum).to(torch.float16)


def _pairs_of_rows(raw: Tensor) -> Tensor:
    """Split bytes (N, 128) into numbers (N, 8, 32): for each 32 bytes, the lower halves, then the upper."""
    four = raw.unflatten(1, (4, 32))
    return torch.stack((four & 15, four >> 4), 2).flatten(1, 2).to(torch.int8)


def _q4_k(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return _pairs_of_rows(raw[:, 16:]), *_by_six_bits(raw)


def _q5_k(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    fifth = (raw[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1).to(torch.int8) << 4
    return _pairs_of_rows(raw[:, 48:]) | fifth, *_by_six_bits(raw)


def _q6_k(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Read 6-bit numbers with a scale per 16, and round them to 8 bits with a scale per 32."""
    low, high = raw[:, :128].unflatten(1, (2, 1, 64)), raw[:, 128:192].unflatten(1, (2, 1, 32))
    low = torch.cat((low & 15, low >> 4), 2).unflatten(-1, (2, 32)).flatten(2, 3)
    high = high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3
    numbers = (low | high << 4).to(torch.int8).flatten(1) - 32
    scale = _halves(raw, 208).to(torch.float32) * raw[:, 192:208].contiguous().view(torch.int8)
    weight = numbers.unflatten(1, (16, 16)) * scale[..., None]
    return *round_to_eight(weight.flatten(1).unflatten(1, (8, GROUP)), torch.float16), None


def _mxfp4(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return _nibbles(raw[:, 1:]), half_powers(raw[:, :1]), None


def _iq4_nl(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return _nibbles(raw[:, 2:]), _halves(raw, 0), None


def _iq4_xs(raw: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Read blocks of 256 weights: d, 8 6-bit scales (all upper two bits, then all lower four), indices of levels."""
    upper = raw[:, 2:4, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8) & 3
    lower = torch.stack((raw[:, 4:8] & 15, raw[:, 4:8] >> 4), 2).flatten(1)
    scale = _halves(raw, 0).to(torch.float32) * ((lower | upper.flatten(1) << 4).to(torch.int8) - 32)
    return _nibbles(raw[:, 8:].reshape(-1, 16)), scale.to(torch.float16), None


_Reader = Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]
_READERS: dict[str, tuple[int, int, _Reader]] = {
    "Q4_0": (4, 18, _q4_0),
    "Q4_1": (4, 20, _q4_1),
    "Q5_0": (8, 22, _q5_0),
    "Q5_1": (8, 24, _q5_1),
    "Q8_0": (8, 34, _q8_0),
    "Q4_K": (4, 144, _q4_k),
    "Q5_K": (8, 176, _q5_k),
    "Q6_K": (8, 210, _q6_k),
    "MXFP4": (4, 17, _mxfp4),
    "IQ4_NL": (4, 18, _iq4_nl),
    "IQ4_XS": (4, 136, _iq4_xs),
}
"""Kind of block -> bits per number after reading, bytes of a block, and function that reads blocks (N, bytes)."""
_LEVELS = {"MXFP4": E2M1, "IQ4_NL": IQ4_NL, "IQ4_XS": IQ4_NL}
"""Levels of the kinds whose numbers are indices."""
