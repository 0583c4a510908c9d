"""Selective scan: a state of S numbers for each feature, with steps that depend on the input (Gu & Dao 2023, Mamba).

    h_i = exp(-δ_i λ) ⊙ h_{i-1} + δ_i x_i b_i,  y_i = h_i · c_i       for each feature, λ, b_i, c_i and h_i of S numbers

First, all chunks are scanned in parallel from an empty state, position by position. Then the states at the starts of
the chunks are computed one after another, and their contributions are added to the outputs. A row of N positions takes
about 2 √N steps.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single


def selective_scan(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    rate: Tensor,
    state: Tensor | None,
    valid: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return (y (B, N, E), the state after the last unpadded position (B, E, S); None if ``state`` is None).

    inputs: x and δ (B, N, E), b and c (B, N, S).   rate λ (E, S).   state (B, E, S): after earlier positions.   valid
    (B, N): True at unpadded positions.   starts (B, N): True where the state is emptied before the position.
    """
    dtype, count = inputs[0].dtype, inputs[0].shape[1]
    if count == 0:
        return inputs[0], state
    x, step, b, c = (at_least_single(each) for each in inputs)
    step = step if valid is None else step * valid[..., None]  # with a step of 0 the state does not change
    size = max(1, isqrt(count - 1) + 1)
    x, step, b, c = (_cut(each, size) for each in (x, step, b, c))
    keeps = (
        torch.ones_like(step[..., :1]) if starts is None else _cut(1.0 - starts[..., None].to(step.dtype), size, 1.0)
    )
    out, last = _within((x, step, b, c), rate, keeps)
    if last.shape[1] > 1 or state is not None:
        entries, end = _entries(step, rate, keeps, last, state)
        out = out + _read(step, rate, keeps, entries, c)
    else:
        end = last[:, 0]
    return out.flatten(1, 2)[:, :count].to(dtype), None if state is None else end.to(state.dtype)


def _cut(x: Tensor, size: int, value: float = 0.0) -> Tensor:
    """Split positions into chunks, (B, N, F) -> (B, n, C, F), padded with ``value``."""
    missing = -x.shape[1] % size
    return (F.pad(x, (0, 0, 0, missing), value=value) if missing else x).unflatten(1, (-1, size))


def _within(inputs: tuple[Tensor, Tensor, Tensor, Tensor], rate: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor]:
    """Scan each chunk from an empty state: return (outputs (B, n, C, E), states at the ends (B, n, E, S))."""
    x, step, b, c = inputs
    state, outs = x.new_zeros(*x.shape[:2], *rate.shape), []
    for t in range(x.shape[2]):
        decay = (-step[:, :, t, :, None] * rate).exp() * keeps[:, :, t, :, None]
        state = decay * state + (step * x)[:, :, t, :, None] * b[:, :, t, None, :]
        outs.append((state @ c[:, :, t, :, None])[..., 0])
    return torch.stack(outs, 2), state


def _entries(step: Tensor, rate: Tensor, keeps: Tensor, last: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (states before each chunk (B, n, E, S), the state after all)."""
    through = (-step.sum(2)[..., None] * rate).exp() * keeps.prod(2)[..., None]
    entry, entries = torch.zeros_like(last[:, 0]) if state is None else state.to(last.dtype), []
    for factor, gained in zip(through.unbind(1), last.unbind(1), strict=True):
        entries.append(entry)
        entry = factor * entry + gained
    return torch.stack(entries, 1), entry


def _read(step: Tensor, rate: Tensor, keeps: Tensor, entries: Tensor, c: Tensor) -> Tensor:
    """Return the contribution of the state before a chunk to the output at each of its positions, (B, n, C, E)."""
    total, keeps = step.cumsum(2), keeps.cumprod(2)
    parts = [
        ((-total[:, :, t, :, None] * rate).exp() * entries @ c[:, :, t, :, None])[..., 0] * keeps[:, :, t]
        for t in range(step.shape[2])
    ]
    return torch.stack(parts, 2)
