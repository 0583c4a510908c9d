"""Quantised weights of published files, which are kept in 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.interop.mapping.conversions import Cut, Way
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import pack_numbers, round_to_eight

GROUP = 32
"""Number of weights of a row that share a scale."""


class NarrowWeights(NamedTuple):
    """Matrix w = scale · number + minimum: numbers (O, I) in int8; scale and minimum (O, I / 32) in fp16, or None.

    Without a minimum, scales may be in bf16, or in fp32, which ``packed`` rounds to fp16.
    bits: 8; or 4, with numbers from -8 to 7, or from 0 to 15 with a minimum.
    """

    numbers: Tensor
    scale: Tensor
    minimum: Tensor | None
    bits: int

    @property
    def finite(self) -> bool:
        """Whether all weights are finite numbers."""
        return all(bool(t.isfinite().all()) for t in (self.scale, self.minimum) if t is not None)

    def dense(self) -> Tensor:
        """Compute the matrix in fp32."""
        groups = self.numbers.unflatten(1, (-1, GROUP)) * self.scale.to(torch.float32)[..., None]
        return (groups if self.minimum is None else groups + self.minimum.to(torch.float32)[..., None]).flatten(1)

    def packed(self) -> PackedMatrix:
        """Return the matrix in the storage format of ``qkv.ops.quantized``."""
        scale = self.scale.to(torch.float16) if self.scale.dtype == torch.float32 else self.scale
        return pack_numbers(self.numbers, scale, self.minimum, self.bits)


def round_weights(weight: Tensor) -> NarrowWeights:
    """Round a matrix (O, I) to 8 bits with a scale in fp16 per 32 weights."""
    numbers, scale = round_to_eight(weight.unflatten(1, (-1, GROUP)), torch.float16)
    return NarrowWeights(numbers.flatten(1), scale, None, 8)


def narrow_of(tensor: object) -> NarrowWeights | None:
    """Read a quantised matrix of a file in 8 or 4 bits; return None for tensors that have no such form."""
    read = getattr(tensor, "narrow", None)
    return read() if read is not None and len(tensor.shape) == 2 else None  # type: ignore[attr-defined]


def convert_inward(way: Way, parts: Sequence[NarrowWeights], cut: Cut) -> NarrowWeights | None:
    """Convert published matrices to qkv's like ``Way.inward``; return None if the conversion moves more than rows."""
    parts = _alike(parts)
    return _converted(lambda several: way.inward(several, cut), parts)


def convert_outward(way: Way, matrix: NarrowWeights, cut: Cut) -> NarrowWeights | None:
    """Convert a matrix like ``Way.outward``; return None if the conversion moves more than rows."""
    return _converted(lambda one: way.outward(one[0], cut)[0], [matrix])


def _converted(convert: Callable[[list[Tensor]], Tensor], parts: Sequence[NarrowWeights]) -> NarrowWeights | None:
    columns = [torch.arange(part.scale.shape[1]).expand(part.scale.shape) for part in parts]
    try:
        after = convert(columns)
    except RuntimeError:  # the conversion splits columns
        return None
    width = columns[0].shape[1]
    if after.dim() != 2 or after.shape[1] != width or not torch.equal(after, columns[0][:1].expand(after.shape)):
        return None
    numbers, scale = convert([p.numbers for p in parts]), convert([p.scale for p in parts])
    lowest = [p.minimum for p in parts if p.minimum is not None]
    return NarrowWeights(numbers, scale, convert(lowest) if lowest else None, parts[0].bits)


def _alike(parts: Sequence[NarrowWeights]) -> Sequence[NarrowWeights]:
    """Convert parts of one matrix to the same form, exactly: 8 bits unless all have 4, minimums if one part has any."""
    forms = {(part.bits, part.minimum is None) for part in parts}
    if len(forms) == 1:
        return parts
    with_minimum = any(part.minimum is not None for part in parts)
    return [
        part._replace(
            bits=8, minimum=torch.zeros_like(part.scale) if with_minimum and part.minimum is None else part.minimum
        )
        for part in parts
    ]
