"""Matrix state with decay and outer-product updates, by chunks: time and memory linear in the length.

    S_i = a_i S_{i-1} + k_i^T v_i,  o_i = q_i S_i

Within a chunk o = ((q k^T) ⊙ L) v with L_ij = Π_{j<m<=i} a_m, for all chunks at once. Only the states at the starts of
chunks are computed sequentially (Sun et al. 2023, RetNet; Dao & Gu 2024, state-space duality).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.matrix_state.chunks import cut, decays, unseen_scores
from qkv.ops.selection.choices import by_reference
from qkv.ops.selection.counting import Unseen, declares


def _scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: object,
    state: object,
    valid: object = None,
    segments: object = None,
    chunk: int = 64,
) -> Unseen:
    shared = q.shape[1] * v.shape[0]  # heads of q and k
    return unseen_scores(q, v, 2 * (shared * q.shape[3] + v.shape[:2].numel() * v.shape[3]), chunk)


@declares(_scores)
def decayed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """Return (o (B, H, N, Dv), state after the last unpadded position); see ``reference`` for the shapes.

    state: state after earlier positions; None: start from 0 and do not compute the last state. q and k may have one
    head for all heads of v.   valid (B, N): True at unpadded positions.   segments (B, N): document numbers; the state
    is reset at each document.   chunk: positions per chunk.
    """
    count = v.shape[2]
    if count == 0:
        return v, state
    if valid is not None:
        k = k * valid[:, None, :, None]
        log_decay = None if log_decay is None else log_decay * valid[:, None]
    size = count if by_reference() else min(chunk, count)
    rates = decays(log_decay, segments, v, size)
    q, k, v = (cut(each, size) for each in (q, k, v))
    inside = ((q @ k.mT) * rates.within) @ v
    starts, ends = q * rates.into[..., None], (k * rates.out[..., None]).mT
    outs, carried, chunks = [], state, inside.shape[2]
    # Unbind instead of slicing, since the gradient of each slice is as large as the whole tensor.
    each = zip(inside.unbind(2), starts.unbind(2), ends.unbind(2), v.unbind(2), rates.through.unbind(2), strict=True)
    for number, (local, start, end, value, through) in enumerate(each, 1):
        outs.append(local if carried is None else local + start @ carried)
        if number < chunks or state is not None:
            gained = end @ value
            carried = gained if carried is None else through[..., None, None] * carried + gained
    last = carried.to(state.dtype) if state is not None and carried is not None else None
    return torch.stack(outs, 2).flatten(2, 3)[:, :, :count], last
