"""Measures what this machine can do, in under a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from qkv.inspection.machine import Machine, processor_name
from qkv.ops.linear.choose import linear

_ROWS, _WIDTH, _HIDDEN = 512, 1024, 4096
_LARGE = 5120
"""The side of a matrix of 100 MB in fp32, more than a processor's caches hold."""
_CALLS = 200


def probe(budget: float = 0.12) -> Machine:
    """The figures of ``Machine`` on the processor, each the best of what about ``budget`` seconds allow."""
    with torch.inference_mode():
        flops = {name: 2 * _ROWS * _WIDTH * _HIDDEN / _best(_product(dtype), budget) for name, dtype in _PRECISIONS.items()}
        vector, matrix = torch.ones(1, _LARGE), torch.ones(_LARGE, _LARGE)
        bandwidth = 4 * matrix.numel() / _best(lambda: linear(vector, matrix), budget)
        return Machine(processor_name(), flops, bandwidth, _best(_small_calls(), budget) / _CALLS)


_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def _product(dtype: torch.dtype) -> Callable[[], object]:
    x, weight = torch.ones(_ROWS, _WIDTH, dtype=dtype), torch.ones(_HIDDEN, _WIDTH, dtype=dtype)
    return lambda: linear(x, weight)


def _small_calls() -> Callable[[], object]:
    norm, x = nn.LayerNorm(64), torch.ones(1, 1, 64)

    def run() -> None:
        for _ in range(_CALLS):
            norm(x)

    return run


def _best(work: Callable[[], object], budget: float) -> float:
    """Shortest time of ``work`` in seconds, over at least two runs after one to warm up."""
    work()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 2 or time.perf_counter() - began < budget:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)
