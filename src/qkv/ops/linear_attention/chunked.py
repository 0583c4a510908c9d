"""Linear attention by chunks: quadratic within a chunk, state carried between chunks; time and memory linear in N."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.counting import Unseen, declares
from qkv.ops.linear_attention.reference import State, mean
from qkv.ops.linear_attention.reference import linear_attention as whole


def _scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: object = None,
    valid: object = None,
    segments: object = None,
    chunk: int = 64,
) -> Unseen:
    """Half of each chunk's scores is hidden; a matrix of all scores is never computed."""
    rows, count = q.shape[:2].numel(), q.shape[2]
    whole, rest = divmod(count, chunk)
    hidden = whole * (chunk * (chunk - 1) // 2) + rest * (rest - 1) // 2
    flops = 2 * rows * (q.shape[3] + v.shape[3]) * hidden
    return Unseen(rows * count * count * q.element_size(), hidden=lambda computed: flops)


@declares(_scores)
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None = None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, State]:
    """Return (O (B, H, N, Dv), state after the last position); see ``reference`` for the shapes.

    segments (B, N): document numbers; the state is reset at each document.   chunk: positions per chunk.
    """
    if state is None:
        state = (q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), q.new_zeros(*q.shape[:2], q.shape[-1]))
    outs = []
    for first in range(0, q.shape[2], chunk):
        part = slice(first, first + chunk)
        here = None if valid is None else valid[:, part]
        if segments is None:
            out, state = whole(q[:, :, part], k[:, :, part], v[:, :, part], state, here)
        else:
            before = segments[:, max(first - 1, 0)]
            out, state = _segmented(q[:, :, part], k[:, :, part], v[:, :, part], state, (before, segments[:, part]))
        outs.append(out)
    return (torch.cat(outs, 2) if outs else v), state


def _segmented(q: Tensor, k: Tensor, v: Tensor, state: State, segments: tuple[Tensor, Tensor]) -> tuple[Tensor, State]:
    """Linear attention of a chunk of packed documents. ``segments``: document before it (B), documents in it (B, C)."""
    s, z = state
    before, inside = segments
    same = (inside[:, :, None] == inside[:, None, :])[:, None]
    goes_on = (inside == before[:, None])[:, None, :, None].to(q.dtype)
    scores = (q @ k.transpose(-1, -2) * same).tril()
    above = scores @ v + goes_on * (q @ s)
    below = scores.sum(-1) + goes_on[..., 0] * (q * z[:, :, None]).sum(-1)
    last = inside[:, -1:]
    kept = (last == before[:, None]).to(q.dtype)[:, None, :, None]
    k = k * (inside == last)[:, None, :, None]
    out = mean(above, below)
    return out, (kept * s + k.transpose(-1, -2) @ v, kept[..., 0] * z + k.sum(2))
