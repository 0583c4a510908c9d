"""Gated scan: a state of one number for each feature, whose decay depends on the input (Griffin, De et al. 2024).

    h_i = a_i ⊙ h_{i-1} + x_i

First, all chunks are scanned in parallel from an empty state, position by position. Then the states at the starts of
the chunks are computed one after another, and their contributions are added. A row of N positions takes about 2 √N
steps.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single


def gated_scan(
    x: Tensor, log_decay: Tensor, state: Tensor | None, valid: Tensor | None = None, starts: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return (h (B, N, E), the state after the last unpadded position (B, E); None if ``state`` is None).

    x and log_decay, ln a, (B, N, E).   state (B, E): after earlier positions.   valid (B, N): True at unpadded
    positions.   starts (B, N): True where the state is emptied before the position.
    """
    dtype, count = x.dtype, x.shape[1]
    if count == 0:
        return x, state
    x, log_decay = at_least_single(x), at_least_single(log_decay)
    if valid is not None:
        x, log_decay = x * valid[..., None], log_decay * valid[..., None]
    keeps = torch.ones_like(x[..., :1]) if starts is None else 1.0 - starts[..., None].to(x.dtype)
    size = max(1, isqrt(count - 1) + 1)
    parts, decays = _cut(x, size), _cut(log_decay, size)
    passes = _cut(keeps, size, 1.0)
    out, entry, entries = _within(parts, decays, passes), None if state is None else state.to(x.dtype), []
    through = decays.sum(2).exp() * passes.prod(2)
    for factor, gained in zip(through.unbind(1), out[:, :, -1].unbind(1), strict=True):
        entries.append(torch.zeros_like(gained) if entry is None else entry)
        entry = gained if entry is None else factor * entry + gained
    out = out + decays.cumsum(2).exp() * passes.cumprod(2) * torch.stack(entries, 1)[:, :, None]
    end = None if state is None or entry is None else entry.to(state.dtype)
    return out.flatten(1, 2)[:, :count].to(dtype), end


def _cut(x: Tensor, size: int, value: float = 0.0) -> Tensor:
    """Split positions into chunks, (B, N, F) -> (B, n, C, F), padded with ``value``."""
    missing = -x.shape[1] % size
    return (F.pad(x, (0, 0, 0, missing), value=value) if missing else x).unflatten(1, (-1, size))


def _within(x: Tensor, log_decay: Tensor, keeps: Tensor) -> Tensor:
    """Scan each chunk from an empty state: return its states (B, n, C, E)."""
    factors, state, states = log_decay.exp() * keeps, torch.zeros_like(x[:, :, 0]), []
    for t in range(x.shape[2]):
        state = factors[:, :, t] * state + x[:, :, t]
        states.append(state)
    return torch.stack(states, 2)
