"""Overlapping slices: values, gradients of both orders, and cost of the backward pass."""

from __future__ import annotations

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.ops.slices import slices

PARTS = [slice(0, 3), slice(2, 5), slice(2, 3), slice(6, 7)]


def test_values_are_those_of_indexing() -> None:
    x = torch.randn(2, 3, 7, 4)
    for found, part in zip(slices(x, PARTS), PARTS, strict=True):
        assert torch.equal(found, x[:, :, part])
    assert slices(x, []) == ()


def test_gradients_of_both_orders() -> None:
    x = torch.randn(1, 2, 7, 2, dtype=torch.float64, requires_grad=True)

    def products(x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = slices(x, PARTS)
        return (a * b * c).sum() + d.square().sum()

    assert gradcheck(products, x)
    assert gradgradcheck(products, x)


class Written(TorchDispatchMode):
    """Number of elements that additions and fills wrote."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and func.overloadpacket.__name__ in ("add", "add_", "zeros", "new_zeros"):
            self.total += found.numel()
        return found


def test_the_backward_pass_is_linear_in_the_length() -> None:
    def written(count: int) -> int:
        x = torch.randn(1, 1, count, 1, requires_grad=True)
        parts = [slice(max(0, i - 8), i + 8) for i in range(0, count, 8)]
        total = torch.cat(slices(x, parts), 2).sum()
        with Written() as seen:
            total.backward()
        return seen.total

    assert 0 < written(512) < 2.2 * written(256)
