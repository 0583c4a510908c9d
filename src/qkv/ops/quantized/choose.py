"""Selection of the product with quantised weights: the native kernel or the reference.

The native kernel rounds x to int8 for weights in 8 and 4 bits. For weights in 16 bits it rounds x to bf16, if the
processor has bf16 products. Because this rounding changes results, the native kernel is then used for every product,
without a timing: a text gives the same results whether it is read at once or token by token. On other processors, both
implementations of 16-bit products agree up to rounding, and the faster one is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.native import library
from qkv.ops.quantized import reference, tiles
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.selection.choices import Choice, choose, chosen, fastest

_MOST_ROWS = 64
"""Number of rows of x up to which the native kernel is timed for weights in 16 bits, if it does not round x.

For more rows, widening the weights to fp32 takes less time than the products.
"""
_INNER, _OUTER, _WEIGHTS = 768, 3072, 4
_OP = "quantised linear"


def native(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b without gradients, fp32 on CPU: x (…, I), b (O) or None -> (…, O)."""
    return tiles.product(x, weight, tiles.tiled_from(weight.bits), bias)


TWINS = {"torch": reference.linear, "native": native}


def linear(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b by the chosen implementation. x (…, I), b (O) or None -> (…, O)."""
    rows = x.numel() // max(1, x.shape[-1])
    if (
        not rows
        or not x.is_cpu
        or not library.readable(x)
        or x.dtype != torch.float32
        or (torch.is_grad_enabled() and x.requires_grad)
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
    ):
        return reference.linear(x, weight, bias)
    return TWINS[choice(weight.bits, rows).twin](x, weight, bias)


def choice(bits: int, rows: int) -> Choice:
    """Choose the implementation for weights in ``bits`` (16, 8 or 4) and a number of ``rows`` of x.

    If the native kernel rounds x, it is used wherever it runs. Otherwise there are timings for one row, for up to 8
    rows and for up to 64 rows.
    """
    if bits == 16 and not library.rounds_to_bf16():
        return _timed(rows)
    case = f"weights in {bits} bits"
    return chosen(_OP, case) or choose(_OP, case, lambda: _ruled(case, bits))


def _timed(rows: int) -> Choice:
    most = next((most for most in (1, 8, _MOST_ROWS) if rows <= most), None)
    if most is None:
        return Choice(_OP, "weights in 16 bits, many rows", "torch", "widening the weights is faster")
    case = f"weights in 16 bits, {'one row' if most == 1 else f'up to {most} rows'}"
    return chosen(_OP, case) or choose(_OP, case, lambda: _measured(case, most), TWINS)


def _ruled(case: str, bits: int) -> Choice:
    if not library.available():
        return Choice(_OP, case, "torch", f"the native kernel does not run here: {library.described()}")
    if bits == 16:
        return Choice(_OP, case, "native", "x is rounded to bf16, and products are added in fp32")
    return Choice(_OP, case, "native", "x is rounded to int8, and products are added as integers")


def _measured(case: str, rows: int) -> Choice:
    if not library.available():
        return Choice(_OP, case, "torch", f"the native kernel does not run here: {library.described()}")
    x = torch.ones(rows, _INNER)
    matrices = [reference.pack(torch.full((_OUTER, _INNER), 1 / _INNER), 16) for _ in range(_WEIGHTS)]

    def timed(name: str) -> None:
        with torch.no_grad():
            for matrix in matrices:
                TWINS[name](x, matrix)

    runs = {name: (lambda name=name: timed(name)) for name in TWINS}
    return fastest(_OP, case, "torch", runs, f"forward at {rows} × {_INNER} × {_OUTER}, {_WEIGHTS} times")
