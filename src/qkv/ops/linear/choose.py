"""Selection of the linear layer's implementation by one timing per case on this machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.linear import native, onednn, operator, reference, split
from qkv.ops.quantized import choose as quantized
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.selection import onednn as permission
from qkv.ops.selection.choices import Choice, by_reference, choose, chosen, fastest

TWINS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "torch": reference.linear,
    "oneDNN": onednn.linear,
    "oneDNN operator": operator.linear,
    "split": split.linear,
    "native": native.linear,
}
# Number of weights below which a product takes microseconds, and call overhead outweighs a faster kernel.
SMALLEST = 1 << 14
_SMALLEST_ROW = 1 << 18
# In training, oneDNN's three products are called from Python, torch's from C++. For fewer weights than the first number
# this overhead exceeds the gain; for fewer than the second it matters, so that small products are timed separately.
_SMALLEST_TRAINED = 1 << 15
_SMALL = 1 << 17
_FEW_ROWS = 64
_LARGE = 1 << 28
"""Number of multiplications from which a product is "many rows, large": operands exceed the processor's caches."""
_ON_COLD_ROWS = 8
"""Number of rows up to which a product spends most of its time on reading the weights from memory."""
# (rows, inner width, outer width) of the sample that is timed for each case.
SAMPLES = {
    "training": (512, 256, 768),
    "training, small": (512, 128, 512),
    "up to 8 rows": (4, 768, 3072),
    "few rows": (16, 2048, 8192),
    "many rows": (512, 256, 768),
    "many rows, large": (1024, 768, 3072),
}
# Training is timed on this many linear layers in sequence, alternately to ``outer`` and back to ``inner``: as in a
# model, weights and activations are no longer in the caches when the backward pass needs them.
_CHAINS = {"training": 4, "training, small": 6}
_IN_OUT = ", weights stored (in, out)"
# Decoding reads every weight once per step, so up to eight rows are timed with more weights than fit the caches.
_COLD = 12 << 20
_ONE, _ON_COLD = "one row", "up to 8 rows"


def linear(x: Tensor, weight: Tensor | PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b by the fastest implementation. x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if isinstance(weight, PackedMatrix):
        return quantized.linear(x, weight, bias)
    size, trained = weight.numel(), torch.is_grad_enabled() or torch.compiler.is_compiling()
    if (
        size < (_SMALLEST_TRAINED if trained else SMALLEST)
        or not x.is_cpu
        or by_reference()
        or x.dtype != torch.float32
        or weight.dtype != torch.float32
    ):
        return F.linear(x, weight, bias)
    if torch.is_autocast_enabled("cpu") or x.numel() == 0:
        return F.linear(x, weight, bias)
    transposed = not weight.is_contiguous() and weight.stride(0) == 1
    if trained:
        return TWINS[choice("training, small" if size < _SMALL else "training", transposed).twin](x, weight, bias)
    rows = x.numel() // x.shape[-1]
    if rows == 1:
        best = row_choice(weight.shape[1], weight.shape[0], transposed)
    else:
        best = choice(kind_of(rows, size), transposed)
    return TWINS[best.twin](x, weight, bias)


def kind_of(rows: int, size: int) -> str:
    """Return the kind of a product without gradients: ``rows`` > 1 of x, and a weight matrix of ``size`` numbers."""
    if rows <= _ON_COLD_ROWS:
        return "up to 8 rows"
    if rows <= _FEW_ROWS:
        return "few rows"
    return "many rows, large" if rows * size >= _LARGE else "many rows"


def choice(kind: str, transposed: bool = False) -> Choice:
    """Return the implementation for matrix products of a ``kind``, a key of ``SAMPLES``; it is timed once.

    Kinds of training are timed forward and backward, all others forward only. transposed: the weights are stored as (I,
    O), as in views of a memory-mapped file.
    """
    case = kind + _IN_OUT if transposed else kind

    def decide() -> Choice:
        rows, inner, outer = SAMPLES[kind]
        x, maps, cold = torch.ones(rows, inner), _CHAINS.get(kind), kind == _ON_COLD
        if maps is None:
            weights = [_ones(outer, inner, transposed) for _ in range(-(-_COLD // (inner * outer)) if cold else 1)]
            runs = {name: _each(TWINS[name], x, weights) for name in _candidates(kind, transposed)}
            times = f", {len(weights)} times" * cold
            return _decided(case, runs, f"forward at {rows} × {inner} × {outer}{times}")
        weights = [_ones(*((outer, inner) if i % 2 == 0 else (inner, outer)), transposed) for i in range(maps)]
        runs = {name: _chain(TWINS[name], x, weights) for name in _candidates(kind, transposed)}
        return _decided(case, runs, f"forward and backward of {maps} maps at {rows} × {inner} × {outer}")

    return chosen("linear", case) or choose("linear", case, decide, _implementations(kind))


def row_choice(inner: int, outer: int, transposed: bool = False) -> Choice:
    """Return the implementation for products of one row with weights of this shape; it is timed once per shape.

    transposed: the weights are stored as (I, O).
    """
    size = inner * outer
    case = f"{_ONE}, {inner} to {outer}{_IN_OUT * transposed}"

    def decide() -> Choice:
        if size < _SMALLEST_ROW:
            return Choice("linear", case, "torch", "too small for the choice to matter")
        weights = [_ones(outer, inner, transposed) for _ in range(-(-_COLD // size))]
        runs = {name: _each(TWINS[name], torch.ones(1, inner), weights) for name in _candidates(_ONE, transposed)}
        return _decided(case, runs, f"forward, {len(weights)} times")

    best = chosen("linear", case)
    if best is None:
        best = choose("linear", case, decide, TWINS if size < _SMALLEST_ROW else _implementations(_ONE))
    return best


def _ones(outer: int, inner: int, transposed: bool) -> Tensor:
    """Create a constant weight (outer, inner) that maps ones to ones, so that repeated products stay finite."""
    shape = (inner, outer) if transposed else (outer, inner)
    weight = torch.full(shape, 1 / inner)
    return weight.t() if transposed else weight


def _implementations(kind: str) -> list[str]:
    """Return the names of the implementations that a cached choice may name.

    This function does not check whether torch and oneDNN compute exactly here: the check would compute products while
    costs are counted on meta tensors.
    """
    return [name for name in TWINS if name != "native" or (kind not in _CHAINS and native.available())]


def _candidates(case: str, transposed: bool) -> list[str]:
    names = ["torch"]
    if permission.available():
        names.append("oneDNN")
    if operator.available():
        names.append("oneDNN operator")
    if case == _ONE:
        names.append("split")
    if case not in _CHAINS and not transposed and native.available():
        names.append("native")
    return names


def _decided(case: str, runs: dict[str, Callable[[], object]], what: str) -> Choice:
    if len(runs) == 1:
        return Choice("linear", case, "torch", "no other implementation computes exactly in fp32 here")
    return fastest("linear", case, "torch", runs, what)


def _each(
    twin: Callable[[Tensor, Tensor, Tensor | None], Tensor], x: Tensor, weights: list[Tensor]
) -> Callable[[], object]:
    """Return a function to be timed, which multiplies x by each of ``weights`` with ``twin``."""

    def run() -> None:
        with torch.no_grad():
            for weight in weights:
                twin(x, weight, None)

    return run


def _chain(
    twin: Callable[[Tensor, Tensor, Tensor | None], Tensor], x: Tensor, weights: list[Tensor]
) -> Callable[[], object]:
    """Return a function to be timed, which applies ``weights`` to x in sequence and computes gradients."""
    x, weights = x.detach().requires_grad_(), [weight.detach().requires_grad_() for weight in weights]

    def run() -> None:
        with torch.enable_grad():
            y = x
            for weight in weights:
                y = twin(y, weight, None)
            torch.autograd.grad(y, (x, *weights), y.detach())

    return run
