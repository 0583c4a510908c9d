"""Quantised weights (round to nearest): w ≈ s q with integers q and a scale s per row or per group of a row.

    8 bits: s = max |w| / 127, -127 ≤ q ≤ 127       4 bits: s = f m / -8, -8 ≤ q ≤ 7, m the weight with the largest |w|

For 4 bits, f is the one of 16 factors that minimises Σ (w - s q)² of the group. Scales are rounded to bf16 before q is
computed, so that q compensates their rounding. Published weights that are already quantised are stored with their
numbers, scales and minimums, w = s q + m, without rounding (``pack_numbers``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import single_or_wider
from qkv.ops.autocast import product_dtype, without_autocast
from qkv.ops.native.library import BLOCK, TILE
from qkv.ops.quantized.packed import PackedMatrix

_FACTORS = tuple(0.7 + 0.03 * i for i in range(16))
_BLOCK_NUMBERS = 1 << 20
"""Approximate number of weights that a product dequantises at once."""


def pack(weight: Tensor, bits: int, group: int = 0) -> PackedMatrix:
    """Quantise W (O, I) to ``bits`` 16, 8 or 4. group: weights per scale, a multiple of 32; 0: one scale per row."""
    outer, inner = weight.shape
    if bits == 16:
        return PackedMatrix(weight.to(torch.bfloat16).contiguous(), None, bits, outer, inner)
    groups = _grouped(weight.to(torch.float32), group)
    numbers, scale = round_to_eight(groups) if bits == 8 else _four(groups)
    stored = _tiled(numbers.flatten(1)[:, : -(-inner // BLOCK) * BLOCK], bits)
    return PackedMatrix(stored, _whole_tiles(scale).transpose(1, 2).contiguous(), bits, outer, inner, group)


def pack_numbers(
    numbers: Tensor, scale: Tensor, minimum: Tensor | None, bits: int, levels: Tensor | None = None
) -> PackedMatrix:
    """Store w = scale · number + minimum, or scale · levels[number], without rounding.

    numbers: (O, I) in int8; in 4 bits from -8 to 7, or from 0 to 15 with minimums or with ``levels`` (16) in int8. I is
    a multiple of 32. scale, minimum: (O, I / 32) in fp16. If minimum is None, scale may be in bf16.
    """
    outer, inner = numbers.shape
    from_zero = bits == 4 and (minimum is not None or levels is not None)
    shifted = numbers - 8 if from_zero else numbers
    lowest = None if minimum is None else _whole_tiles(minimum).mT.contiguous()
    return PackedMatrix(
        _tiled(shifted, bits), _whole_tiles(scale).mT.contiguous(), bits, outer, inner, BLOCK, lowest, levels
    )


def unpack(packed: PackedMatrix, rows: Tensor | None = None) -> Tensor:
    """Dequantise W (O, I) to fp32, or only its ``rows``, in the order given."""
    stored, scale, minimum = packed.stored, packed.scale, packed.minimum
    if scale is None:
        return (stored if rows is None else stored[rows]).to(torch.float32)
    scale, lowest = (None if t is None else _rows_of(t, rows, packed.outer) for t in (scale, minimum))
    assert scale is not None
    if rows is None:
        stored = stored.permute(0, 3, 1, 2, 4).flatten(0, 1)[: packed.outer]
    else:
        stored = stored[rows // TILE, :, :, rows % TILE]
    numbers = (stored if packed.bits == 8 else _halves(stored)).flatten(-3)  # merge blocks, groups of 4, weights
    size = packed.group or numbers.shape[-1]
    whole = F.pad(numbers, (0, size * scale.shape[-1] - numbers.shape[-1])).unflatten(-1, (-1, size))
    if packed.levels is not None:
        whole = packed.levels[whole.int() + 8]
    elif lowest is not None and packed.bits == 4:
        whole = whole + 8
    values = whole * scale[..., None]
    return (values if lowest is None else values + lowest[..., None]).flatten(-2)[..., : packed.inner]


def _rows_of(scale: Tensor, rows: Tensor | None, outer: int) -> Tensor:
    """Read the scales of ``rows`` (default: all ``outer`` rows) in fp32, from tiles (T, G, 16)."""
    scales = scale.mT.flatten(0, 1)[:outer] if rows is None else scale[rows // TILE, :, rows % TILE]
    return scales.to(torch.float32)


def linear(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b by parts of W's rows, with a gradient for x. x (…, I), b (O) or None -> (…, O).

    The backward pass dequantises W again, so that a graph of many layers holds none of it.
    """
    y = _Dequantisation.apply(x, weight)
    return y if bias is None else y + bias.to(y.dtype)


class _Dequantisation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: PackedMatrix) -> Tensor:
        ctx.weight, ctx.dtype = weight, x.dtype
        dtype = product_dtype(x)
        with without_autocast(x):
            parts = [F.linear(x.to(dtype), part) for part in _dense(weight, dtype)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return by_weight(grads[0], ctx.weight).to(ctx.dtype), None


def by_weight(y: Tensor, weight: PackedMatrix) -> Tensor:
    """Compute y W: y (…, O) -> (…, I). Blocks of W's rows are multiplied in turn; their products are added in fp32 or
    wider.
    """
    begin, total = 0, y.new_zeros(*y.shape[:-1], weight.inner, dtype=single_or_wider(y.dtype))
    for part in _dense(weight, y.dtype):
        total += y[..., begin : begin + len(part)] @ part
        begin += len(part)
    return total.to(y.dtype)


def _dense(weight: PackedMatrix, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield blocks of rows of W in ``dtype``; if W is stored in ``dtype``, yield the whole W at once."""
    if weight.stored.dtype == dtype:
        yield weight.stored
        return
    for part in _parts(weight):
        yield unpack(part).to(dtype)


def _parts(weight: PackedMatrix) -> Iterator[PackedMatrix]:
    """Yield blocks of rows of W: whole tiles, at most about a million weights each."""
    outer, inner = weight.shape
    step = max(TILE, _BLOCK_NUMBERS // inner // TILE * TILE)
    each = step if weight.scale is None else step // TILE
    for i, begin in enumerate(range(0, outer, step)):
        part = slice(i * each, (i + 1) * each)
        scale, minimum = (None if t is None else t[part] for t in (weight.scale, weight.minimum))
        one = weight._replace(stored=weight.stored[part], scale=scale, minimum=minimum)
        yield one._replace(outer=min(step, outer - begin))


def lookup(ids: Tensor, table: Tensor | PackedMatrix) -> Tensor:
    """Look up rows of a table (V, D): ids (…) -> (…, D)."""
    return unpack(table, ids) if isinstance(table, PackedMatrix) else F.embedding(ids, table)


def _grouped(weight: Tensor, group: int) -> Tensor:
    """Pad W with zeros to whole groups and split it -> (O, G, group)."""
    size = group or -(-weight.shape[1] // BLOCK) * BLOCK
    return F.pad(weight, (0, -weight.shape[1] % size)).unflatten(1, (-1, size))


def round_to_eight(groups: Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """Round groups of weights (…, G, group) to numbers in int8 and scales (…, G) of the ``dtype``."""
    scale = (groups.abs().amax(-1) / 127).to(dtype)
    return _rounded(groups, scale, -127, 127).to(torch.int8), scale


def _four(groups: Tensor) -> tuple[Tensor, Tensor]:
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    best = error = None
    for factor in _FACTORS[:1] if groups.is_meta else _FACTORS:  # a model that is loaded needs the shapes alone
        scale = (largest * (factor / -8)).to(torch.bfloat16)
        misfit = (groups - _rounded(groups, scale, -8, 7) * scale.to(torch.float32)[..., None]).square().sum(-1)
        best = scale if best is None or error is None else torch.where(misfit < error, scale, best)
        error = misfit if error is None else torch.minimum(misfit, error)
    assert best is not None
    return _rounded(groups, best, -8, 7).to(torch.int8), best


def _rounded(groups: Tensor, scale: Tensor, least: int, most: int) -> Tensor:
    step = scale.to(torch.float32)[..., None]
    return (groups / torch.where(step == 0, 1.0, step)).round().clamp(least, most)


def _whole_tiles(rows: Tensor) -> Tensor:
    """Pad rows (O, …) with zeros to whole tiles and split them -> (T, 16, …)."""
    missing = -rows.shape[0] % TILE
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))).unflatten(0, (-1, TILE))


def _tiled(numbers: Tensor, bits: int) -> Tensor:
    """Convert numbers (O, J) to the storage format of ``PackedMatrix``."""
    blocks = _whole_tiles(numbers).unflatten(-1, (-1, BLOCK))
    if bits == 4:
        low, high = (blocks + 8).unflatten(-1, (2, -1)).unbind(-2)
        blocks = (low | (high << 4)).view(torch.uint8)
    return blocks.unflatten(-1, (-1, 4)).permute(0, 2, 3, 1, 4).contiguous()


def _halves(stored: Tensor) -> Tensor:
    """Unpack bytes (…, B, 4, 4) into four-bit numbers (…, B, 8, 4)."""
    return torch.cat((stored & 15, stored >> 4), -2).to(torch.int8) - 8
