"""Matrix-valued states of mixers after each position, which a tap may read and replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context

States = Callable[[Tensor], Tensor]
"""Function that computes the states (B, H, N, Dk, Dv) after each position from the state (B, H, Dk, Dv) before them."""


def replaced_states(
    branch: Branch, context: Context, before: Tensor | None, like: Tensor, compute: States
) -> Tensor | None:
    """Compute the states after each position and offer them to the tap, if it receives them.

    Return the replacement, or None if there is none.

    before (B, H, Dk, Dv): state before the positions; None: zeros like ``like``.
    """
    return branch.offer_computed(
        context.tap, "state", lambda: compute(torch.zeros_like(like) if before is None else before)
    )


def read_states(q: Tensor, states: Tensor, before: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
    """Compute outputs o_i = q_i S_i; return (o (B, H, N, Dv), the state after the last unpadded position).

    The second is None if ``before`` is None.

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
