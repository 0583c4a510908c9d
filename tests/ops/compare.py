"""Comparing a computation with its reference: outputs and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 3e-2}
"""Of the largest expected value."""


def outputs_and_gradients(f: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """f(inputs) and the gradient of each input, for one and the same random direction of the output."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = f(*leaves)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, direction)]


def assert_same(got: Tensor, expected: Tensor, tolerance: float | None = None, what: str = "value") -> None:
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    assert not got.isnan().any(), f"{what}: NaN"
    assert got.isfinite().all(), f"{what}: not finite"
    if got.numel():
        tolerance = TOLERANCE[got.dtype] if tolerance is None else tolerance
        worst, size = float((got.double() - expected.double()).abs().max()), float(expected.abs().max())
        assert worst <= tolerance * max(1.0, size), f"{what}: off by {worst:.1e} where values reach {size:.1e}"


def assert_all_same(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float | None = None) -> None:
    """Outputs first, then gradients."""
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert_same(a, b, tolerance, "output" if number == 0 else f"gradient of input {number - 1}")
