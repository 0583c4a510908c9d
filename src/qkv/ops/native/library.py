"""Matrix products y = x W^T + b and activations by the native library, which is compiled from C++."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch

from qkv.ops.native import loading
from qkv.system.optional import turned_off

BLOCK = 32
"""Number of consecutive elements of x that share a scale, and number of weights per block of a quantised row."""
TILE = 16
"""Number of rows of quantised weights that are stored interleaved, as a tile."""
_SOURCE = "native.cpp"
_NO_SCALES = (None, None, None, 0, 1, 0)
_SMALL = 1 << 16
"""Number of bytes of weights below which one thread is faster than several."""


def available() -> bool:
    """Return whether the library runs on this machine; build it if it is not in the cache folder."""
    return not isinstance(_loaded(), str)


def described() -> str:
    """Describe the library for ``qkv info``: its path and instruction set, or the reason why it is unavailable."""
    return loading.described(_SOURCE)


def rounds_to_bf16() -> bool:
    """Return whether products with bf16 weights round x to bf16, since the processor has bf16 product instructions."""
    return available() and bool(ctypes.c_int.in_dll(functions(), "qkv_rounds_to_bf16").value)


def readable(t: Tensor) -> bool:
    """Return True if native code can read ``t``: it is a plain tensor, and no dispatch mode is active."""
    return type(t) is Tensor and _python_dispatch._get_current_dispatch_mode() is None


def has_tiles() -> bool:
    """Return whether products can use tiles: the processor has AMX, and the operating system permits its use."""
    return not turned_off("tiles") and available() and _permits_tiles()


@cache
def _permits_tiles() -> bool:
    flag = ctypes.c_int()
    functions().qkv_tiles(ctypes.byref(flag))
    return bool(flag.value)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, tiled_from: int = 0) -> Tensor:
    """Compute y = x W^T + b: x (…, I) in fp32, weight (O, I) in fp32 or bf16, b (O) in fp32 -> (…, O); no gradients.

    Sums are in fp32. With a bf16 weight, x is rounded to bf16 if ``rounds_to_bf16`` or if tiles are used. A row's
    result does not depend on the number of rows. tiled_from: number of rows from which a product with a bf16 weight
    uses tiles; 0: never.
    """
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    size = weight.element_size()
    stride, outer = weight.stride(0) * size, weight.shape[0]
    return _multiplied(x, outer, bias, outer * stride, (8 * size, weight.data_ptr(), stride, *_NO_SCALES, tiled_from))


def quantized_product(
    x: Tensor,
    stored: Tensor,
    scale: Tensor,
    bits: int,
    outer: int,
    group: int = 0,
    minimum: Tensor | None = None,
    levels: Tensor | None = None,
    bias: Tensor | None = None,
    tiled_from: int = 0,
) -> Tensor:
    """Compute y = x W^T + b without gradients: x (…, I) in fp32, b (O) in fp32 -> (…, O).

    stored, scale, bits (8 or 4), outer, group, minimum, levels: as in ``qkv.ops.quantized.packed.PackedMatrix``.
    tiled_from: number of rows from which tiles are used; 0: never.

    Each block of 32 numbers of x is rounded to multiples of its largest absolute value / 127. The sum of a block's
    products is exact, and blocks are summed in fp32. A row's result depends neither on the number of rows nor on
    ``tiled_from``.
    """
    lowest, table = (None if t is None else t.data_ptr() for t in (minimum, levels))
    scales = (scale.data_ptr(), lowest, table, int(scale.dtype == torch.float16), scale.shape[1], group)
    matrix = (bits, stored.data_ptr(), 0, *scales, tiled_from)
    return _multiplied(x, outer, bias, stored.nbytes, matrix)


def _multiplied(x: Tensor, outer: int, bias: Tensor | None, nbytes: int, matrix: tuple[Any, ...]) -> Tensor:
    """Compute x W^T + b. nbytes: size of W; matrix: arguments that describe W for the library."""
    y, x = x.new_empty(*x.shape[:-1], outer), x.contiguous()
    bias = None if bias is None else bias.contiguous()
    threads = 1 if nbytes < _SMALL else torch.get_num_threads()
    outside = (None if bias is None else bias.data_ptr(), x.data_ptr(), y.data_ptr())
    functions().qkv_product(*matrix, *outside, y.numel() // outer, x.shape[-1], outer, threads)
    return y


def activation(x: Tensor, kind: int) -> Tensor:
    """Compute φ(x) for a contiguous fp32 tensor. kind: index of φ in ``qkv.ops.native.step.INPUTS``."""
    y = torch.empty_like(x)
    functions().qkv_activation(kind, x.data_ptr(), y.data_ptr(), x.numel(), torch.get_num_threads())
    return y


def functions() -> Any:
    """Return the library with its functions; ``available`` must be true."""
    library = _loaded()
    assert not isinstance(library, str), library
    return library


@cache
def _loaded() -> Any:
    """Load the library; return its functions, or the reason as text if it cannot run here."""
    return loading.load(_SOURCE, signatures())


def signatures() -> dict[str, list[Any]]:
    """Return the argument types of the library's functions."""
    pointer, number, count = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    scales = (pointer, pointer, pointer, count, number, number)
    matrix, outside = (count, pointer, number, *scales, number), (pointer, pointer, pointer)
    return {
        "qkv_product": [*matrix, *outside, number, number, number, count],
        "qkv_tiles": [pointer],
        "qkv_activation": [number, pointer, pointer, number, count],
        "qkv_step": [pointer, number, pointer, pointer, number, *[pointer] * 4, count],
    }
