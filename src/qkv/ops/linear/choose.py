"""Picks the implementation of a linear map by measuring both on the machine at hand, once a process."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from qkv.ops.choices import Choice, record, recorded
from qkv.ops.linear import onednn, reference

MATRIX = "matrix, fp32 on CPU"
VECTOR = "vector, fp32 on CPU"
_TWINS = {"oneDNN": onednn.linear, "torch": reference.linear}
# Below this a product lasts microseconds, and what is saved inside it goes to the call.
_SMALLEST = 1 << 14


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b by the fastest path for these tensors. x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return reference.linear(x, weight, bias)
    if weight.numel() < _SMALLEST or x.numel() == 0 or x.is_meta:
        return reference.linear(x, weight, bias)
    case = VECTOR if x.numel() == x.shape[-1] else MATRIX
    return _TWINS[chosen(case).twin](x, weight, bias)


def chosen(case: str) -> Choice:
    """The choice for ``MATRIX`` (training, prefill) or ``VECTOR`` (one token), measured when first asked for."""
    return recorded("linear", case) or record(_measured(case))


@torch.inference_mode(False)  # the first product may be asked for while generating, and a backward pass is measured
def _measured(case: str) -> Choice:
    if not onednn.available():
        return Choice("linear", case, "torch", "this build of torch has no oneDNN")
    training = case == MATRIX
    rows, inner, outer = (512, 256, 768) if training else (1, 1024, 4096)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((rows, inner), (outer, inner)))
    seconds = {name: _time(twin, x, weight, training) for name, twin in _TWINS.items()}
    gain = seconds["torch"] / seconds["oneDNN"]
    flops = (6 if training else 2) * rows * inner * outer
    rates = ", ".join(f"{name} {flops / s / 1e9:.0f}" for name, s in seconds.items())
    what = "forward and backward" if training else "forward"
    # Within the noise of so short a measurement torch's own path is kept.
    twin = "oneDNN" if gain > 1.1 else "torch"
    return Choice("linear", case, twin, f"{what} at {rows} × {inner} × {outer}, GFLOP/s: {rates}", gain if twin == "oneDNN" else 1.0)


def _time(twin: Callable[..., Tensor], x: Tensor, weight: Tensor, training: bool) -> float:
    """Shortest of a few timings, in seconds."""
    best = float("inf")
    with torch.enable_grad() if training else torch.no_grad():
        weight = weight.detach().requires_grad_(training)
        x = x.detach().requires_grad_(training)
        for _ in range(6):
            began = time.perf_counter()
            y = twin(x, weight)
            if training:
                torch.autograd.grad(y, (x, weight), y)
            best = min(best, time.perf_counter() - began)
    return best
