"""Cross entropy of a language-model head, computed in chunks to avoid storing all logits.

For B·N positions and V tokens, logits, softmax and gradient take 12·B·N·V bytes in fp32: 2.5 GB for 4,096 positions and
50,257 tokens. Here a few positions at a time pass through the head, and their gradient is computed immediately, so that
nothing is recomputed and memory holds one chunk only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single, single_or_wider
from qkv.ops.selection.untraced import untraced

Head = Callable[[Tensor], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return -Σ log softmax(logits)[target] in nats over targets other than -100 (torch's default).

    logits (T, V), targets (T) -> ().

    ``smoothing`` ε: the target has probability 1 - ε + ε/V and every other token ε/V (Szegedy et al. 2016).
    """
    return F.cross_entropy(at_least_single(logits), targets, reduction="sum", label_smoothing=smoothing)


def smoothed_entropy(classes: int, smoothing: float) -> float:
    """Return the minimum of ``cross_entropy`` for one target of V = ``classes``: the smoothed target's entropy in nats.

    H = -(1 - ε + ε/V) log(1 - ε + ε/V) - (V - 1) ε/V log(ε/V); 0 without smoothing.
    """
    if not smoothing or classes < 2:
        return 0.0
    rest = smoothing / classes
    target = 1 - smoothing + rest
    return -target * math.log(target) - (classes - 1) * rest * math.log(rest)


@untraced("a gradient taken in the forward pass cannot be traced")
def chunked_cross_entropy(
    hidden: Tensor, head: nn.Module, targets: Tensor, rows: int, smoothing: float = 0.0
) -> Tensor:
    """Compute ``cross_entropy(head(hidden), targets, smoothing)`` for ``rows`` positions at a time, to save memory.

    hidden (T, D), targets (T) -> (). Value and gradient are equal up to the order of summation. ``head`` must act on
    each position separately.
    """
    parameters = [p for p in head.parameters() if p.requires_grad]
    if not torch.is_grad_enabled():
        return sum(
            (cross_entropy(head(h), t, smoothing) for h, t in _shares(hidden, targets, rows)),
            hidden.new_zeros((), dtype=single_or_wider(hidden.dtype)),
        )
    return _Chunked.apply(hidden, targets, head, rows, smoothing, *parameters)  # type: ignore[no-any-return]


def _shares(hidden: Tensor, targets: Tensor, rows: int) -> Any:
    return zip(hidden.split(rows), targets.split(rows), strict=True)


class _Chunked(torch.autograd.Function):
    """Cross entropy whose gradients are computed in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, targets: Tensor, head: Head, rows: int, smoothing: float, *parameters: Tensor
    ) -> Tensor:
        nats = hidden.new_zeros((), dtype=single_or_wider(hidden.dtype))
        hidden_grad = torch.zeros_like(hidden)
        grads = [torch.zeros_like(p) for p in parameters]
        for i, (share, target) in enumerate(_shares(hidden, targets, rows)):
            with torch.enable_grad():
                share = share.detach().requires_grad_()
                loss = cross_entropy(head(share), target, smoothing)
            first, *rest = torch.autograd.grad(loss, (share, *parameters))
            nats += loss.detach()
            hidden_grad[i * rows : i * rows + len(first)] = first
            for total, grad in zip(grads, rest, strict=True):
                total += grad
        ctx.save_for_backward(hidden_grad, *grads)
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, *grads = (g * upstream[0] for g in ctx.saved_tensors)
        return (hidden_grad, None, None, None, None, *grads)
