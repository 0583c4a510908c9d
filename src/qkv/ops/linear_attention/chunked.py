"""Linear attention by chunks: time and memory linear in the length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.linear_attention.reference import State, mean
from qkv.ops.matrix_state.decayed import decayed


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None = None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, State | None]:
    """Return (O (B, H, N, Dv), state after the last position); see ``reference`` for the shapes.

    O is computed as by ``decayed`` without decay; values get an additional feature of 1, whose weighted sum is the
    normaliser. Without ``state``, the returned state is None.

    segments (B, N): document numbers; the state is reset at the start of each document.   chunk: positions per chunk.
    """
    sums = None if state is None else torch.cat((state[0], state[1][..., None]), -1)
    out, last = decayed(q, k, F.pad(v, (0, 1), value=1.0), None, sums, valid, segments, chunk)
    left = None if last is None else (last[..., :-1].contiguous(), last[..., -1].contiguous())
    return mean(out[..., :-1], out[..., -1]), left
