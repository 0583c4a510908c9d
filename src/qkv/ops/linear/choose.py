"""Picks the implementation of a linear map by measuring on the machine at hand, once a process and case."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.ops import onednn as permission
from qkv.ops.choices import Choice, choose, fastest
from qkv.ops.linear import onednn, operator, reference

TWINS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "torch": reference.linear,
    "oneDNN": onednn.linear,
    "oneDNN operator": operator.linear,
}
# Below this a product lasts microseconds, and what is saved inside it goes to the call.
_SMALLEST = 1 << 14
_FEW_ROWS = 64
# Rows, inner and outer width that stand for each case. One row is timed on weights larger than any cache.
_SAMPLES = {"training": (512, 256, 768), "one row": (1, 4096, 8192), "few rows": (16, 1024, 2048), "many rows": (512, 256, 768)}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b by the fastest path for these tensors. x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return reference.linear(x, weight, bias)
    if weight.numel() < _SMALLEST or x.numel() == 0:
        return reference.linear(x, weight, bias)
    return TWINS[choice(_case(x)).twin](x, weight, bias)


def _case(x: Tensor) -> str:
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return "training"
    rows = x.numel() // x.shape[-1]
    return "one row" if rows == 1 else "few rows" if rows <= _FEW_ROWS else "many rows"


def choice(case: str) -> Choice:
    """The choice for "training" (forward and backward), or for "one row", "few rows" or "many rows" (forward alone)."""
    return choose("linear", case, lambda: _measured(case))


def _measured(case: str) -> Choice:
    names = ["torch"]
    if permission.available():
        names.append("oneDNN")
    if operator.available() and case != "training":
        names.append("oneDNN operator")
    if len(names) == 1:
        return Choice("linear", case, "torch", "this build of torch has no oneDNN that keeps fp32 exact here")
    rows, inner, outer = _SAMPLES[case]
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((rows, inner), (outer, inner)))
    runs = {name: _run(TWINS[name], x, weight, case == "training") for name in names}
    direction = "forward and backward" if case == "training" else "forward"
    return fastest("linear", case, "torch", runs, f"{direction} at {rows} × {inner} × {outer}")


def _run(twin: Callable[[Tensor, Tensor, Tensor | None], Tensor], x: Tensor, weight: Tensor, training: bool) -> Callable[[], object]:
    if training:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()

    def run() -> None:
        with torch.set_grad_enabled(training):
            y = twin(x, weight, None)
            if training:
                torch.autograd.grad(y, (x, weight), y.detach())

    return run
