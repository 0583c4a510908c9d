"""Selection of the linear layer's implementation by one timing per case on this machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.ops import onednn as permission
from qkv.ops.choices import Choice, choose, fastest
from qkv.ops.linear import onednn, operator, reference, split

TWINS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "torch": reference.linear,
    "oneDNN": onednn.linear,
    "oneDNN operator": operator.linear,
    "split": split.linear,
}
# Below this a product lasts microseconds, and what is saved inside it goes to the call.
_SMALLEST = 1 << 14
_SMALLEST_ROW = 1 << 18
# In training the calls around a product count below this: three products of oneDNN are called from Python, torch's from C++.
_SMALL = 1 << 17
_FEW_ROWS = 64
# Rows, inner and outer width that stand for each case.
_SAMPLES = {"training": (512, 256, 768), "training, small": (512, 128, 384), "few rows": (16, 2048, 8192), "many rows": (512, 256, 768)}
_TRAINING = ("training", "training, small")
_IN_OUT = ", weights stored (in, out)"
# Decoding reads every weight of the model once a step, so one row is timed on more weights than caches hold.
_COLD = 12 << 20


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b by the fastest implementation. x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return reference.linear(x, weight, bias)
    if weight.numel() < _SMALLEST or x.numel() == 0:
        return reference.linear(x, weight, bias)
    transposed = not weight.is_contiguous() and weight.stride(0) == 1
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return TWINS[choice("training, small" if weight.numel() < _SMALL else "training", transposed).twin](x, weight, bias)
    rows = x.numel() // x.shape[-1]
    if rows == 1:
        found = row_choice(weight.shape[1], weight.shape[0], transposed)
    else:
        found = choice("few rows" if rows <= _FEW_ROWS else "many rows", transposed)
    return TWINS[found.twin](x, weight, bias)


def choice(kind: str, transposed: bool = False) -> Choice:
    """The choice for "training" or "training, small" (forward and backward), "few rows" or "many rows" (forward only).

    transposed: the weights are stored (I, O), as views of a mapped file can be.
    """
    case = kind + _IN_OUT * transposed

    def decide() -> Choice:
        rows, inner, outer = _SAMPLES[kind]
        trains = kind in _TRAINING
        x, weight = torch.ones(rows, inner), _ones(outer, inner, transposed)
        runs = {name: _run(TWINS[name], x, [weight], trains) for name in _candidates(kind)}
        direction = "forward and backward" if trains else "forward"
        return _decided(case, runs, f"{direction} at {rows} × {inner} × {outer}")

    return choose("linear", case, decide, TWINS)


def row_choice(inner: int, outer: int, transposed: bool = False) -> Choice:
    """The choice for one row and this weight shape; matrix-vector products are timed per shape, as they depend on it most."""
    size = inner * outer
    case = f"one row, {inner} to {outer}{_IN_OUT * transposed}"

    def decide() -> Choice:
        if size < _SMALLEST_ROW:
            return Choice("linear", case, "torch", "too small for the path to matter")
        weights = [_ones(outer, inner, transposed) for _ in range(-(-_COLD // size))]
        runs = {name: _run(TWINS[name], torch.ones(1, inner), weights, False) for name in _candidates("one row")}
        return _decided(case, runs, f"forward, {len(weights)} times")

    return choose("linear", case, decide, TWINS)


def _ones(outer: int, inner: int, transposed: bool) -> Tensor:
    return torch.ones(inner, outer).t() if transposed else torch.ones(outer, inner)


def _candidates(case: str) -> list[str]:
    names = ["torch"]
    if permission.available():
        names.append("oneDNN")
    if operator.available() and case not in _TRAINING:
        names.append("oneDNN operator")
        if case == "one row":
            names.append("split")
    return names


def _decided(case: str, runs: dict[str, Callable[[], object]], what: str) -> Choice:
    if len(runs) == 1:
        return Choice("linear", case, "torch", "this build of torch has no oneDNN that keeps fp32 exact here")
    return fastest("linear", case, "torch", runs, what)


def _run(twin: Callable[[Tensor, Tensor, Tensor | None], Tensor], x: Tensor, weights: list[Tensor], training: bool) -> Callable[[], object]:
    if training:
        x, weights = x.detach().requires_grad_(), [weight.detach().requires_grad_() for weight in weights]

    def run() -> None:
        with torch.set_grad_enabled(training):
            for weight in weights:
                y = twin(x, weight, None)
                if training:
                    torch.autograd.grad(y, (x, weight), y.detach())

    return run
