"""Native product y = x W^T + b of a few rows, built on first use where there is a C++ compiler.

The library is called through ctypes: 3 µs a call, a sixth of oneDNN's operator, and no headers of torch or Python are
needed to build it. Its threads are those of the OpenMP library that torch has loaded. ``QKV_NATIVE=0`` turns it off.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.system.compiler import BuildError, build, library_path

BLOCK = 32
"""Weights that the kernel reads at once: x has zeros up to a multiple of it, and so have quantised rows."""
_SOURCE = Path(__file__).with_name("product.cpp")
_SMALL = 1 << 16
"""Bytes of weights below which one thread is faster than waking the others."""
_MARCH = {"AVX512": "-march=native", "AVX2": "-march=x86-64-v3"}
"""Compiler flag by the instructions that torch uses, which ``ATEN_CPU_CAPABILITY`` limits."""


def flags() -> list[str]:
    """Flags of the compiler for this processor and the instructions that torch uses on it."""
    if platform.machine() in ("x86_64", "AMD64"):
        machine = _MARCH.get(torch.backends.cpu.get_cpu_capability(), "-march=x86-64")
    else:
        machine = "-mcpu=native"
    return ["-std=c++17", "-O2", machine, "-fopenmp", "-fvisibility=hidden"]


def name() -> str | None:
    """Name of the library's file, built or not, which identifies its code; None if it is turned off or without a
    compiler.
    """
    path = None if _off() else library_path(_SOURCE, flags())
    return None if path is None else path.name


def available() -> bool:
    """True if the kernel runs here; builds it if it is not in the cache folder."""
    return not isinstance(_loaded(), str)


def described() -> str:
    """Description for ``qkv info``: the library's path and instructions, or the reason for which there is none."""
    found = _loaded()
    if isinstance(found, str):
        return f"none: {found}"
    return f"{build(_SOURCE, flags())} ({flags()[2].lstrip('-')})"


def product(
    x: Tensor, weight: Tensor, bits: int, scale: Tensor | None = None, group: int = 0, bias: Tensor | None = None
) -> Tensor:
    """y = x W^T + b without gradients: x (…, I) in fp32, b (O) in fp32 -> (…, O).

    weight: rows of W, ``bits`` 32 or 16: (O, I) in fp32 or bf16; 8 or 4: the stored bytes of ``qkv.ops.quantized``,
    with ``scale`` (O, G) in bf16, one per ``group`` weights, or 0: per row. A row's result does not depend on
    the number of rows.
    """
    call = _loaded()
    assert not isinstance(call, str), call
    inner, outer = x.shape[-1], weight.shape[0]
    y = x.new_empty(*x.shape[:-1], outer)
    x = F.pad(x, (0, -inner % BLOCK)) if inner % BLOCK else x.contiguous()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    stride, width = weight.stride(0) * weight.element_size(), x.shape[-1]
    call(
        bits,
        weight.data_ptr(),
        stride,
        None if scale is None else scale.data_ptr(),
        1 if scale is None else scale.shape[1],
        group,
        None if bias is None else bias.data_ptr(),
        x.data_ptr(),
        width,
        y.data_ptr(),
        x.numel() // width,
        inner if scale is None else width,
        outer,
        1 if outer * stride < _SMALL else torch.get_num_threads(),
    )
    return y


def _off() -> bool:
    return os.environ.get("QKV_NATIVE") == "0"


@cache
def _loaded() -> Any:
    """Function of the library, or the reason, as text, for which it does not run here."""
    if _off():
        return "QKV_NATIVE=0 turns it off"
    try:
        call = ctypes.CDLL(str(build(_SOURCE, flags()))).qkv_product
    except (BuildError, OSError, AttributeError) as error:
        return str(error)
    pointer, number = ctypes.c_void_p, ctypes.c_long
    call.argtypes = [
        ctypes.c_int,
        *(pointer, number, pointer, number, number, pointer, pointer, number, pointer),
        *(number, number, number, ctypes.c_int),
    ]
    call.restype = None
    return call
