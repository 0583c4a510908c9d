"""Overlapping slices of a sequence, with a backward pass of linear cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def slices(x: Tensor, parts: Sequence[slice]) -> tuple[Tensor, ...]:
    """Return slices of x (B, H, N, D) along N.

    The gradient of a plain slice is a tensor as large as x with mostly zeros, so that a loop over N / C slices costs
    O(N² / C). Here a single such tensor accumulates the gradients of all slices.
    """
    return _Slices.apply(x, tuple(parts)) if parts else ()  # type: ignore[no-any-return]


class _Slices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: tuple[slice, ...]) -> tuple[Tensor, ...]:
        ctx.shape, ctx.parts = x.shape, parts
        return tuple(x[:, :, part] for part in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].new_zeros(ctx.shape)
        for part, grad in zip(ctx.parts, grads, strict=True):
            total[:, :, part] += grad
        return total, None
