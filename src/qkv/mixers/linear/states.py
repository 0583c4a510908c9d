"""States of matrix-valued mixers at all positions, which a tap may read and replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context

States = Callable[[Tensor], Tensor]
"""States (B, H, N, Dk, Dv) after all positions, from the state (B, H, Dk, Dv) before them."""


def replaced_states(
    branch: Branch, context: Context, before: Tensor | None, like: Tensor, compute: States
) -> Tensor | None:
    """Offer the states after each position to the tap, if it receives them; return the replacement, or None.

    before (B, H, Dk, Dv): state before the positions; None: zeros like ``like``.
    """
    return branch.offer_computed(
        context.tap, "state", lambda: compute(torch.zeros_like(like) if before is None else before)
    )


def read_states(q: Tensor, states: Tensor, before: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
    """Return (o_i = q_i S_i (B, H, N, Dv), the state after the last unpadded position; None if ``before`` is None).

    q (B, H, N, Dk), states (B, H, N, Dk, Dv).
    """
    out = (q[..., None, :] @ states)[..., 0, :]
    return out, None if before is None else _last(states, before, context.lengths)


def _last(states: Tensor, before: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None or not states.shape[2]:
        return states[:, :, -1].to(before.dtype) if states.shape[2] else before
    index = (lengths - 1).clamp(min=0).to(states.device)
    last = states[torch.arange(len(states), device=states.device), :, index].to(before.dtype)
    return torch.where((lengths > 0)[:, None, None, None], last, before)
