"""Causal attention of a few new positions of each row to keys and values in pages, which are read where they are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.ops.native import library, loading

MOST = 16
"""Positions of a row up to which reading pages takes less time than a copy of them and a kernel of many queries."""
_SMALL = 1 << 15
"""Numbers read below which one thread is faster than waking the others."""


class PageTable(NamedTuple):
    """Pages of B rows, which hold ``size`` positions each.

    addresses (B, W), int64: of a page's keys (G, size, Dk), which its values (G, size, Dv) follow, in fp32; 0 where a
    row has no further page.
    """

    addresses: Tensor
    size: int


class ScoreTerms(NamedTuple):
    """Scores of queries and keys: scale · q k^T, c · tanh(s / c) with a soft cap c, minus slope (H) · (i - j).

    sink (H): logit per head that takes weight and has no value.
    """

    scale: float
    softcap: float | None = None
    slopes: Tensor | None = None
    sink: Tensor | None = None


def available(like: Tensor) -> bool:
    """True if the kernel reads pages of the dtype and device of ``like``."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and not isinstance(_loaded(), str)


def suits(q: Tensor) -> bool:
    """True if the kernel can compute the outputs of the queries q (B, H, N, D) in this call."""
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
    """Outputs O (B, H, N, Dv) of queries q (B, H, N, Dk), after k (B, G, N, Dk) and v (B, G, N, Dv) were stored.

    past, after: positions of each row before and after the call; query n sees those up to past + n. Outputs of
    positions that a row lacks mean nothing.
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
    """Library with its function, or the reason, as text, for which it does not run here."""
    pointer, number, count = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    sizes, factors = (pointer, *[number] * 2, pointer, pointer, *[number] * 6), (*[ctypes.c_float] * 2, *[pointer] * 2)
    return loading.load("pages.cpp", {"qkv_pages": [*[pointer] * 5, *sizes, *factors, count]})
