"""fp32 products through oneDNN, which torch carries beside MKL.

Torch sends fp32 products on x86 to MKL, which on some processors runs at under half of their speed; the same wheel's
oneDNN does not. Torch hands a product to oneDNN if ``torch.backends.mkldnn.matmul.fp32_precision`` allows bf16 inside. On
a processor without tile units for that (AMX), oneDNN then computes in full fp32 all the same. ``available`` proves it on
the machine at hand, with numbers that bf16 or tf32 would round; where a bit is lost, this way is not taken.

The permission is given around single products, not to the process: it also reaches torch's fused attention, where it
slows short sequences down.
"""

from __future__ import annotations

from functools import cache
from types import TracebackType

import torch


class allowed:
    """Products inside go to oneDNN. Costs about a microsecond."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        torch.backends.mkldnn.matmul.fp32_precision = self.before  # type: ignore[attr-defined]


# (batch or 0, rows, inner, columns) of the products that training and decoding make.
_SHAPES = [(0, 512, 64, 256), (0, 4096, 32, 64), (0, 1, 512, 2048), (0, 7, 33, 65), (0, 64, 2048, 64), (8, 64, 32, 64), (8, 128, 64, 128)]


@cache
def available() -> bool:
    """True if this build of torch has oneDNN and it keeps every bit of fp32 here."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    with torch.no_grad(), allowed():
        return all(_keeps_every_bit(*shape) for shape in _SHAPES)


def _keeps_every_bit(batch: int, rows: int, inner: int, columns: int) -> bool:
    """A product whose terms need all 24 bits: row i picks one entry 1 + i·2^-23 out of zeros, for each layout of operands."""
    values = 1 + torch.arange(rows, dtype=torch.float32) * 2.0**-23
    left = torch.zeros(rows, inner)
    left[torch.arange(rows), torch.arange(rows) % inner] = values
    right = torch.ones(inner, columns)
    wanted = values[:, None].expand(rows, columns)
    if batch:
        left, right = left.expand(batch, -1, -1).contiguous(), right.expand(batch, -1, -1).contiguous()
        wanted = wanted.expand(batch, -1, -1)
    layouts = ((left, right), (left, right.mT.contiguous().mT), (left.mT.contiguous().mT, right))
    return all(bool((a @ b == wanted).all()) and bool((b.mT @ a.mT == wanted.mT).all()) for a, b in layouts)
