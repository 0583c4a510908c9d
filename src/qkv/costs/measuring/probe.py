"""Measure this machine's rates for the operators of a model, in under a second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from qkv.costs.measuring.machine import Machine, store_machine, stored_machine
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.linear.choose import linear
from qkv.ops.masks import Causal, Sites
from qkv.system.allocator import keep_freed_memory
from qkv.system.allowance import limit_threads
from qkv.system.processor import processor_name

_ROWS, _FEW_ROWS, _WIDTH, _HIDDEN = 1024, 16, 384, 1536
_HEADS, _LENGTH, _HEAD = 12, 256, 64
_SIDE, _MATRICES = 2048, 6
"""Side and number of matrices: six of 17 MB in fp32, more than processor caches hold."""
_CALLS = 200


def probe(budget: float = 0.1) -> Machine:
    """Measure the rates of this machine; each is the best of several runs within about ``budget`` seconds."""
    limit_threads()
    keep_freed_memory()
    scores = 12 * _HEADS * _LENGTH * _LENGTH * _HEAD
    return Machine(
        processor=processor_name(),
        flops={name: _rate(name == "bf16", budget) for name in ("fp32", "bf16")},
        attention=scores / _best(_attention(), budget),
        elements=4 * (_WIDTH + _HIDDEN) * _ROWS / _best(_elements(), budget),
        bandwidth=4 * _SIDE * _SIDE * _MATRICES / _best(_rows(), budget),
        call=_best(_small_calls(), budget) / _CALLS,
    )


def this_machine() -> Machine:
    """Return the measured rates of this computer. They are measured once and cached."""
    machine = stored_machine()
    if machine is None:
        machine = probe()
        with contextlib.suppress(OSError):  # without a writable cache, each process measures again
            store_machine(machine)
    return machine


def _rate(rounded: bool, budget: float) -> float:
    """Measure the FLOP/s of linear layers; on fewer rows if the full number takes much longer than ``budget``, as in
    emulated bf16.
    """
    for rows in (_FEW_ROWS, _ROWS):
        seconds = _best(_linear(rounded, rows), budget if rows == _ROWS else 0.0)
        if seconds * _ROWS / rows > 4 * budget:
            break
    return 6 * rows * _WIDTH * _HIDDEN / seconds


def _linear(rounded: bool, rows: int) -> Callable[[], object]:
    x, weight = torch.ones(rows, _WIDTH, requires_grad=True), torch.ones(_HIDDEN, _WIDTH, requires_grad=True)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            y = linear(x, weight)
        torch.autograd.grad(y, (x, weight), y.detach())

    return run


def _attention() -> Callable[[], object]:
    q, k, v = (torch.ones(1, _HEADS, _LENGTH, _HEAD, requires_grad=True) for _ in range(3))
    positions = torch.arange(_LENGTH)[None]
    problem = AttentionProblem(Causal(), Sites(positions, positions, aligned=True), _HEAD**-0.5)

    def run() -> None:
        out = attention(q, k, v, problem)
        torch.autograd.grad(out, (q, k, v), out.detach())

    return run


def _elements() -> Callable[[], object]:
    x, hidden = (torch.ones(_ROWS, width, requires_grad=True) for width in (_WIDTH, _HIDDEN))

    def run() -> None:
        for y, source in ((F.layer_norm(x, (_WIDTH,)), x), (F.gelu(hidden), hidden)):
            torch.autograd.grad(y, source, y.detach())

    return run


def _rows() -> Callable[[], object]:
    x = torch.ones(1, _SIDE)
    weights = [torch.ones(_SIDE, _SIDE) for _ in range(_MATRICES)]

    def run() -> None:
        with torch.no_grad():
            for weight in weights:
                linear(x, weight)

    return run


def _small_calls() -> Callable[[], object]:
    norm, x = nn.LayerNorm(64), torch.ones(1, 1, 64)

    def run() -> None:
        with torch.no_grad():
            for _ in range(_CALLS):
                norm(x)

    return run


def _best(work: Callable[[], object], budget: float) -> float:
    """Measure the shortest time of ``work`` in seconds, over at least two runs after one warm-up run."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 2 or time.perf_counter() - began < budget:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
