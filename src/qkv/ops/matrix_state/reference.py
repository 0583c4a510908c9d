"""Reference implementations of matrix-valued recurrent states, position by position; faster ones must agree with them.

decayed:   S_i = a_i S_{i-1} + k_i^T v_i                             o_i = q_i S_i
delta:     S_i = a_i S_{i-1} + b_i k_i^T (v_i - k_i a_i S_{i-1})     o_i = q_i S_i

q, k (B, H, N, Dk)   v (B, H, N, Dv)   log_decay = log a (B or 1, H, N)   strength b (B, H, N)   S (B, H, Dk, Dv)
"""

from __future__ import annotations

import torch
from torch import Tensor


def decayed(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rule ``decayed`` position by position; return (o (B, H, N, Dv), last S). ``state``: initial S."""
    outs = []
    for i in range(q.shape[2]):
        before = state if log_decay is None else log_decay[:, :, i, None, None].exp() * state
        state = before + k[:, :, i, :, None] * v[:, :, i, None, :]
        outs.append((q[:, :, i, None, :] @ state)[:, :, 0])
    return torch.stack(outs, 2) if outs else v, state


def delta(
    q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the rule ``delta`` position by position; return (o (B, H, N, Dv), last S). ``state``: initial S.

    Each step moves the value that S stores for key k_i towards v_i by the fraction b_i.
    """
    outs = []
    for i in range(q.shape[2]):
        before = state if log_decay is None else log_decay[:, :, i, None, None].exp() * state
        key = k[:, :, i, None, :]
        error = v[:, :, i, None, :] - key @ before
        state = before + strength[:, :, i, None, None] * key.mT @ error
        outs.append((q[:, :, i, None, :] @ state)[:, :, 0])
    return torch.stack(outs, 2) if outs else v, state


def decayed_states(k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor, starts: Tensor | None) -> Tensor:
    """Return S after each position, (B, H, N, Dk, Dv), of the rule ``decayed``.

    starts (B, N): True where S is set to 0 before the position; None: nowhere. k may have one head for all heads of v.
    """
    states = [state[:, :, None][:, :, :0]]
    for i in range(v.shape[2]):
        state = _emptied(state, starts, i)
        before = state if log_decay is None else log_decay[:, :, i, None, None].exp() * state
        state = before + k[:, :, i, :, None] * v[:, :, i, None, :]
        states.append(state[:, :, None])
    return torch.cat(states, 2)


def delta_states(
    k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor, starts: Tensor | None
) -> Tensor:
    """Return S after each position, (B, H, N, Dk, Dv), of the rule ``delta``; see ``decayed_states``."""
    states = [state[:, :, None][:, :, :0]]
    for i in range(v.shape[2]):
        one, state = slice(i, i + 1), _emptied(state, starts, i)
        decay = None if log_decay is None else log_decay[:, :, one]
        _, state = delta(k[:, :, one], k[:, :, one], v[:, :, one], strength[:, :, one], decay, state)
        states.append(state[:, :, None])
    return torch.cat(states, 2)


def _emptied(state: Tensor, starts: Tensor | None, i: int) -> Tensor:
    return state if starts is None else state.masked_fill(starts[:, i, None, None, None], 0.0)
