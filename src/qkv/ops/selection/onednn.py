"""fp32 matrix products by oneDNN instead of MKL.

On x86, torch computes fp32 products with MKL, which on some processors reaches less than half of oneDNN's speed. Torch
uses oneDNN if ``torch.backends.mkldnn.matmul.fp32_precision`` is "bf16". On a processor without matrix units for bf16
(AMX), oneDNN still computes in full fp32. ``available`` verifies this with numbers that bf16 and tf32 would round; if
any bit of a result differs, oneDNN is not used.

The setting is changed only during single products, since it also affects torch's fused attention, which becomes slower
for short sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from types import TracebackType

import torch
from torch import Tensor

from qkv.system.optional import turned_off


class allowed:
    """Context manager: compute fp32 matrix products with oneDNN. Takes about a microsecond.

    The setting is global to the process: if several threads are inside at once, the first thread changes it and the
    last thread restores it. Meanwhile, products of other threads may use oneDNN too, which is equally exact.
    """

    __slots__ = ()
    _lock = Lock()
    _inside = 0
    _before = "none"

    def __enter__(self) -> None:
        with allowed._lock:
            if not allowed._inside:
                allowed._before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
                torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
            allowed._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with allowed._lock:
            allowed._inside -= 1
            if not allowed._inside:
                torch.backends.mkldnn.matmul.fp32_precision = allowed._before  # type: ignore[attr-defined]


# (batch or 0, rows, inner, columns) of typical products in training and decoding.
_SHAPES = [
    (0, 512, 64, 256),
    (0, 4096, 32, 64),
    (0, 1, 512, 2048),
    (0, 7, 33, 65),
    (0, 64, 2048, 64),
    (8, 64, 32, 64),
    (8, 128, 64, 128),
]


def available() -> bool:
    """Return whether this build of torch has oneDNN and it computes exactly in fp32 on this machine."""
    return not turned_off("onednn") and _exact()


@cache
def _exact() -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    with allowed():
        return keeps_every_bit(lambda a, b: a @ b)


def keeps_every_bit(product: Callable[[Tensor, Tensor], Tensor], batches: bool = True) -> bool:
    """Return whether ``product`` of two matrices is exact in fp32. batches: also test batches of matrices.

    The tests need all 24 bits of fp32: row i selects 1 + i·2^-23. Each test runs for several memory layouts of the
    operands.
    """
    with torch.no_grad():
        return all(_keeps(product, *shape) for shape in _SHAPES if batches or not shape[0])


def _keeps(product: Callable[[Tensor, Tensor], Tensor], batch: int, rows: int, inner: int, columns: int) -> bool:
    values = 1 + torch.arange(rows, dtype=torch.float32) * 2.0**-23
    left = torch.zeros(rows, inner)
    left[torch.arange(rows), torch.arange(rows) % inner] = values
    right = torch.ones(inner, columns)
    expected = values[:, None].expand(rows, columns)
    if batch:
        left, right = left.expand(batch, -1, -1).contiguous(), right.expand(batch, -1, -1).contiguous()
        expected = expected.expand(batch, -1, -1)
    layouts = ((left, right), (left, right.mT.contiguous().mT), (left.mT.contiguous().mT, right))
    return all(
        bool((product(a, b) == expected).all()) and bool((product(b.mT, a.mT) == expected.mT).all()) for a, b in layouts
    )
