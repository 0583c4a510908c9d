"""Causal attention of a few new positions of each row to a paged KV cache, whose pages are read without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.ops.native import library, loading

MOST = 16
"""Number of new positions per row up to which reading pages is faster than a copy and a many-query kernel."""
_SMALL = 1 << 15
"""Number of elements read below which one thread is faster than several."""


class PageTable(NamedTuple):
    """Page table of B rows; each page holds ``size`` positions.

    addresses (B, W), int64: memory address of each page, which holds keys (G, size, Dk) followed by values (G, size,
    Dv), in fp32; 0 if a row has no further page.
    """

    addresses: Tensor
    size: int


class ScoreTerms(NamedTuple):
    """Terms of the scores: s = scale · q k^T, then c · tanh(s / c) with a soft cap c, then minus slope (H) · (i - j).

    sink (H): logit per head that takes part in the softmax but has no value.
    """

    scale: float
    softcap: float | None = None
    slopes: Tensor | None = None
    sink: Tensor | None = None


def available(like: Tensor) -> bool:
    """Return whether the kernel supports pages of the dtype and device of ``like``."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and not isinstance(_loaded(), str)


def suits(q: Tensor) -> bool:
    """Return whether the kernel can compute the outputs of the queries q (B, H, N, D) in this call."""
    return (
        0 < q.shape[2] <= MOST
        and not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and library.readable(q)
        and available(q)
    )


def attention(
    q: Tensor, k: Tensor, v: Tensor, table: PageTable, past: Sequence[int], after: Sequence[int], how: ScoreTerms
) -> Tensor:
    """Store k (B, G, N, Dk) and v (B, G, N, Dv) in the pages, then compute O (B, H, N, Dv) of queries q (B, H, N, Dk).

    past, after: number of positions of each row before and after the call; query n sees positions up to past + n.
    Outputs after a row's last new position are undefined.
    """
    q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
    batch, heads, count, width = q.shape
    kv_heads, value_width = v.shape[1], v.shape[3]
    y = q.new_zeros(batch, count, heads, value_width)
    strides = [stride for t in (q, k, v) for stride in t.stride()[:3]]
    whole = kv_heads * (width + value_width) * sum(after)
    slopes, sink = (None if t is None else t.to(torch.float32).contiguous() for t in (how.slopes, how.sink))
    functions = _loaded()
    assert not isinstance(functions, str), functions
    functions.qkv_pages(
        *(t.data_ptr() for t in (q, k, v, y)),
        (ctypes.c_long * 9)(*strides),
        table.addresses.data_ptr(),
        *(table.addresses.shape[1], table.size),
        *((ctypes.c_long * batch)(*counts) for counts in (past, after)),
        *(batch, heads, kv_heads, count, width, value_width),
        *(how.scale, how.softcap or 0.0),
        *(None if t is None else t.data_ptr() for t in (slopes, sink)),
        1 if whole < _SMALL else torch.get_num_threads(),
    )
    return y.transpose(1, 2)


@cache
def _loaded() -> Any:
    """Load the library; return its functions, or the reason as text if it cannot run here."""
    pointer, number, count = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    sizes, factors = (pointer, *[number] * 2, pointer, pointer, *[number] * 6), (*[ctypes.c_float] * 2, *[pointer] * 2)
    return loading.load("pages.cpp", {"qkv_pages": [*[pointer] * 5, *sizes, *factors, count]})
