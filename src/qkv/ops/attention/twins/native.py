"""Causal or full attention by the native kernel, for inference: scores stay in registers and caches."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from qkv.ops.at_least_single import at_least_single
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.native import library, loading

_STEP = 16
"""Both head widths must be multiples of this number, so that rows are whole vectors on every processor."""
_TYPES = (torch.float32, torch.bfloat16)


def suits(q: Tensor, v: Tensor) -> bool:
    """Return whether the kernel supports these dtypes and widths, and runs here: no gradients, no compilation."""
    return (
        not torch.compiler.is_compiling()
        and library.readable(q)
        and q.is_cpu
        and q.dtype in _TYPES
        and q.shape[3] % _STEP == 0
        and v.shape[3] % _STEP == 0
        and not torch.is_grad_enabled()
        and not isinstance(_loaded(), str)
    )


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute causal or full attention O (B, H, N, Dv) of N queries, the last N of M positions.

    Not for a bias, a soft cap or dropout. bf16 is computed in fp32. Shapes as in ``reference``.
    """
    dtype, causal = q.dtype, not problem.mask.sees_all(problem.sites.span())
    q, k, v = (_rows(at_least_single(t)) for t in (q, k, v))
    batch, heads, queries, width = q.shape
    kv_heads, keys, value_width = k.shape[1], k.shape[2], v.shape[3]
    y = q.new_empty(batch, queries, heads, value_width)
    strides = [stride for t in (q, k, v) for stride in t.stride()[:3]]
    functions = _loaded()
    assert not isinstance(functions, str), functions
    functions.qkv_attention(
        *(t.data_ptr() for t in (q, k, v, y)),
        (ctypes.c_long * len(strides))(*strides),
        *(batch, heads, heads // kv_heads, queries, keys, width, value_width),
        problem.scale,
        causal,
        torch.get_num_threads(),
    )
    return y.to(dtype).transpose(1, 2)


def _rows(t: Tensor) -> Tensor:
    """Return ``t`` with contiguous features (last stride 1)."""
    return t if t.stride(3) == 1 else t.contiguous()


@cache
def _loaded() -> Any:
    """Load the native library; return its functions, or the reason as text if it cannot run here."""
    pointer, number, count = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    types = [*[pointer] * 5, *[number] * 7, ctypes.c_float, count, count]
    return loading.load("sequence.cpp", {"qkv_attention": types})
