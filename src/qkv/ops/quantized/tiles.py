"""Choice between vector instructions and AMX tiles for native products with quantised weights; timed once per machine.

Weights in 8 and 4 bits: both add the same integers, so that results are bitwise equal, and the choice may depend on the
number of rows. Weights in 16 bits: the order of the sums differs. The same choice then applies to any number of rows,
so that a row's result does not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from qkv.ops.native import library
from qkv.ops.quantized import reference
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.selection.choices import Choice, choose, chosen, fastest

_OP = "native product"
_ROWS = {16: {1: (1, 8, 32)}, 8: {2: (4,), 8: (16,)}, 4: {2: (4,), 8: (16,)}}
"""By bits of the weights: {minimum number of rows of a choice: numbers of rows that are timed for it}."""
_INNER, _OUTER, _WEIGHTS = 768, 3072, 4


def tiled_from(bits: int) -> int:
    """Return the number of rows of x from which products with weights in ``bits`` use tiles; 0: never."""
    if bits not in _ROWS or not library.has_tiles() or (bits == 16 and not library.rounds_to_bf16()):
        return 0
    return next((least for least in _ROWS[bits] if choice(bits, least).twin == "tiles"), 0)


def choice(bits: int, least: int) -> Choice:
    """Choose "vectors" or "tiles" for products of at least ``least`` rows, on a processor with both; timed once."""
    case = f"weights in {bits} bits, {least} rows and more"
    return chosen(_OP, case) or choose(
        _OP, case, lambda: _measured(case, bits, _ROWS[bits][least]), ("vectors", "tiles")
    )


def _measured(case: str, bits: int, rows: tuple[int, ...]) -> Choice:
    matrices = [reference.pack(torch.full((_OUTER, _INNER), 1 / _INNER), bits) for _ in range(_WEIGHTS)]
    inputs = [torch.ones(count, _INNER) for count in rows]

    def run(least: int) -> Callable[[], object]:
        return lambda: [product(x, matrix, least) for x in inputs for matrix in matrices]

    what = f"forward at {' and '.join(map(str, rows))} × {_INNER} × {_OUTER}, {_WEIGHTS} times"
    return fastest(_OP, case, "vectors", {"vectors": run(0), "tiles": run(1)}, what)


def product(x: torch.Tensor, weight: PackedMatrix, least: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute y = x W^T + b by the native library: x (…, I), b (O) or None -> (…, O).

    least: number of rows from which tiles are used; 0: never.
    """
    if weight.scale is None:
        return library.product(x, weight.stored, bias, least)
    form = weight.bits, weight.outer, weight.group, weight.minimum, weight.levels
    return library.quantized_product(x, weight.stored, weight.scale, *form, bias, least)
