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
    bits: 8; or 4, with numbers from -8 to 7, or from 0 to 15 with a minimum, or indices of ``levels`` (16) in int8.
    transposed: True if the published matrix (I, O) is the transpose of w; its groups are along I nevertheless.
    """

    numbers: Tensor
    scale: Tensor
    minimum: Tensor | None
    bits: int
    levels: Tensor | None = None
    transposed: bool = False

    @property
    def values(self) -> Tensor:
        """Numbers (O, I) in int8; if there are ``levels``, the levels with these indices."""
        return self.numbers if self.levels is None else self.levels[self.numbers.int()]

    @property
    def finite(self) -> bool:
        """Whether all weights are finite numbers."""
        return all(bool(t.isfinite().all()) for t in (self.scale, self.minimum) if t is not None)

    def dense(self) -> Tensor:
        """Compute the published matrix in fp32."""
        groups = self.values.unflatten(1, (-1, GROUP)) * self.scale.to(torch.float32)[..., None]
        whole = (groups if self.minimum is None else groups + self.minimum.to(torch.float32)[..., None]).flatten(1)
        return whole.t() if self.transposed else whole

    def packed(self) -> PackedMatrix:
        """Return the matrix in the storage format of ``qkv.ops.quantized``."""
        scale = self.scale.to(torch.float16) if self.scale.dtype == torch.float32 else self.scale
        return pack_numbers(self.numbers, scale, self.minimum, self.bits, self.levels)


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
    """Convert a quantised matrix as ``Way.outward`` converts a tensor; return None if it does more than move rows."""
    return _converted(lambda one: way.outward(one[0], cut)[0], [matrix])


def _converted(convert: Callable[[list[Tensor]], Tensor], parts: Sequence[NarrowWeights]) -> NarrowWeights | None:
    first, width = parts[0], parts[0].scale.shape[1]

    def converted(tensors: Sequence[Tensor]) -> Tensor:
        return convert([t.t() if part.transposed else t for part, t in zip(parts, tensors, strict=True)])

    try:
        after = converted([torch.arange(width).expand(part.scale.shape) for part in parts])
    except RuntimeError:  # the conversion splits columns
        return None
    if after.dim() != 2 or after.shape[1] != width or not torch.equal(after, torch.arange(width).expand(after.shape)):
        return None
    numbers, scale = converted([part.numbers for part in parts]), converted([part.scale for part in parts])
    lowest = [part.minimum for part in parts if part.minimum is not None]
    return NarrowWeights(numbers, scale, converted(lowest) if lowest else None, first.bits, first.levels)


def _alike(parts: Sequence[NarrowWeights]) -> Sequence[NarrowWeights]:
    """Convert parts of one matrix to the same form, exactly.

    This is 8 bits unless all have 4 and the same levels, and minimums if one part has any.
    """
    forms = {(part.bits, part.minimum is None, _numbers_of(part.levels)) for part in parts}
    if len(forms) == 1:
        return parts
    with_minimum = any(part.minimum is not None for part in parts)
    return [
        part._replace(
            numbers=part.values,
            bits=8,
            levels=None,
            minimum=torch.zeros_like(part.scale) if with_minimum and part.minimum is None else part.minimum,
        )
        for part in parts
    ]


def _numbers_of(levels: Tensor | None) -> tuple[int, ...]:
    return () if levels is None else tuple(levels.tolist())
