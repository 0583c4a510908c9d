"""Selection of the product with quantised weights: the native kernel for a few rows, else the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.choices import Choice, choose, chosen, fastest
from qkv.ops.native import library
from qkv.ops.quantized import reference
from qkv.ops.quantized.packed import PackedMatrix

_MOST_ROWS = 16
"""Rows up to which the native kernel is timed; of more, the products take longer than widening the weights."""
_INNER, _OUTER, _WEIGHTS = 768, 3072, 4


def native(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b without gradients, fp32 on CPU: x (…, I), b (O) or None -> (…, O)."""
    return library.product(x, weight.stored, weight.bits, weight.scale, weight.group, bias)


TWINS = {"torch": reference.linear, "native": native}


def linear(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b by the fastest implementation. x (…, I), b (O) or None -> (…, O)."""
    rows = x.numel() // max(1, x.shape[-1])
    if (
        not 0 < rows <= _MOST_ROWS
        or not x.is_cpu
        or x.dtype != torch.float32
        or (torch.is_grad_enabled() and x.requires_grad)
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
    ):
        return reference.linear(x, weight, bias)
    kind = "one row" if rows == 1 else "up to 4 rows" if rows <= 4 else f"up to {_MOST_ROWS} rows"
    return TWINS[choice(weight.bits, kind).twin](x, weight, bias)


def choice(bits: int, kind: str) -> Choice:
    """Implementation for weights in ``bits`` and "one row", "up to 4 rows" or "up to 16 rows"; timed once."""
    case = f"weights in {bits} bits, {kind}"
    return chosen("quantised linear", case) or choose("quantised linear", case, lambda: _measured(bits, case), TWINS)


def _measured(bits: int, case: str) -> Choice:
    if not library.available():
        return Choice("quantised linear", case, "torch", f"the native kernel does not run here: {library.described()}")
    rows = {"one row": 1, "up to 4 rows": 4}.get(case.partition(", ")[2], _MOST_ROWS)
    x = torch.ones(rows, _INNER)
    weight = torch.full((_OUTER, _INNER), 1 / _INNER)
    matrices = [reference.pack(weight, bits, 32 if bits == 4 else 0) for _ in range(_WEIGHTS)]

    def timed(name: str) -> None:
        with torch.no_grad():
            for matrix in matrices:
                TWINS[name](x, matrix)

    runs = {name: (lambda name=name: timed(name)) for name in TWINS}
    return fastest(
        "quantised linear", case, "torch", runs, f"forward at {rows} × {_INNER} × {_OUTER}, {_WEIGHTS} times"
    )
