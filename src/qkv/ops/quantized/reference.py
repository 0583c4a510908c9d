"""Quantised weights (round to nearest): w ≈ s q with integers q and a scale s per row or per group of a row.

    8 bits: s = max |w| / 127, -127 ≤ q ≤ 127       4 bits: s = f m / -8, -8 ≤ q ≤ 7, m the weight with the largest |w|

For 4 bits, f of a few factors minimises Σ (w - s q)² of the group. Scales are rounded to bf16 before q is computed, so
that their rounding costs nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.native.library import BLOCK
from qkv.ops.quantized.packed import PackedMatrix

_FACTORS = tuple(0.7 + 0.03 * i for i in range(16))
_BLOCK_NUMBERS = 1 << 20
"""Weights that a product dequantises at once."""


def pack(weight: Tensor, bits: int, group: int = 0) -> PackedMatrix:
    """Quantise W (O, I) to ``bits`` 16, 8 or 4. group: weights per scale, a multiple of 32; 0: one scale per row."""
    inner = weight.shape[1]
    if bits == 16:
        return PackedMatrix(weight.to(torch.bfloat16).contiguous(), None, bits, inner)
    groups = _grouped(weight.to(torch.float32), group)
    numbers, scale = _eight(groups) if bits == 8 else _four(groups)
    rows = numbers.flatten(1)[:, : -(-inner // BLOCK) * BLOCK]
    return PackedMatrix(_stored(rows, bits), scale, bits, inner, group)


def unpack(packed: PackedMatrix, rows: Tensor | slice | None = None) -> Tensor:
    """W (O, I) in fp32, or only its ``rows``."""
    stored, scale = packed.stored, packed.scale
    if rows is not None:
        stored, scale = stored[rows], None if scale is None else scale[rows]
    if scale is None:
        return stored.to(torch.float32)
    numbers = stored if packed.bits == 8 else _halves(stored)
    size = packed.group or numbers.shape[-1]
    whole = F.pad(numbers, (0, size * scale.shape[-1] - numbers.shape[-1])).unflatten(-1, (-1, size))
    return (whole * scale.to(torch.float32)[..., None]).flatten(-2)[..., : packed.inner]


def linear(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b, with a gradient of x, in blocks of rows of W. x (…, I), b (O) or None -> (…, O)."""
    outer, inner = weight.shape
    step = max(1, _BLOCK_NUMBERS // inner)
    parts = [F.linear(x, unpack(weight, slice(i, i + step)).to(x.dtype)) for i in range(0, outer, step)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    return y if bias is None else y + bias.to(y.dtype)


def lookup(ids: Tensor, table: Tensor | PackedMatrix) -> Tensor:
    """Rows of a table (V, D): ids (…) -> (…, D)."""
    return unpack(table, ids) if isinstance(table, PackedMatrix) else F.embedding(ids, table)


def _grouped(weight: Tensor, group: int) -> Tensor:
    """W with zeros up to whole groups, as (O, G, group)."""
    size = group or -(-weight.shape[1] // BLOCK) * BLOCK
    return F.pad(weight, (0, -weight.shape[1] % size)).unflatten(1, (-1, size))


def _eight(groups: Tensor) -> tuple[Tensor, Tensor]:
    scale = (groups.abs().amax(-1) / 127).to(torch.bfloat16)
    return _rounded(groups, scale, -127, 127).to(torch.int8), scale


def _four(groups: Tensor) -> tuple[Tensor, Tensor]:
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    best = error = None
    for factor in _FACTORS:
        scale = (largest * (factor / -8)).to(torch.bfloat16)
        found = (groups - _rounded(groups, scale, -8, 7) * scale.to(torch.float32)[..., None]).square().sum(-1)
        best = scale if best is None or error is None else torch.where(found < error, scale, best)
        error = found if error is None else torch.minimum(found, error)
    assert best is not None
    return _rounded(groups, best, -8, 7).to(torch.int8), best


def _rounded(groups: Tensor, scale: Tensor, least: int, most: int) -> Tensor:
    step = scale.to(torch.float32)[..., None]
    return (groups / torch.where(step == 0, 1.0, step)).round().clamp(least, most)


def _stored(numbers: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return numbers.contiguous()
    low, high = numbers.unflatten(1, (-1, 2, BLOCK // 2)).unbind(2)
    return ((low & 15) | (high << 4)).flatten(1).view(torch.uint8).contiguous()


def _halves(stored: Tensor) -> Tensor:
    """Numbers (…, J) of four bits from their bytes (…, J / 2)."""
    both = stored.view(torch.int8).unflatten(-1, (-1, BLOCK // 2))
    return torch.stack(((both << 4) >> 4, both >> 4), -2).flatten(-3)
