"""Matrix state updated by the delta rule, by chunks: time and memory linear in the length.

    S_i = a_i S_{i-1} + b_i k_i^T (v_i - k_i a_i S_{i-1}),  o_i = q_i S_i

Within a chunk the corrections u_i = b_i (v_i - k_i a_i S_{i-1}) solve one triangular system,
(1 + tril(b k k^T ⊙ L, -1)) u = b (v - (k ⊙ into) S_entry), and S_i sums k_j^T u_j, with u in place of the values (Yang
et al. 2024, DeltaNet; Yang et al. 2025, Gated DeltaNet).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.at_least_single import at_least_single
from qkv.ops.matrix_state.chunks import cut, decays, unseen_scores
from qkv.ops.selection.counting import Unseen, declares


def _scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: object,
    log_decay: object,
    state: object,
    valid: object = None,
    segments: object = None,
    chunk: int = 64,
) -> Unseen:
    return unseen_scores(q, v, 2 * v.shape[:2].numel() * (2 * q.shape[3] + v.shape[3]), chunk)


@declares(_scores)
def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """Return (o (B, H, N, Dv), state after the last unpadded position); see ``reference`` for the shapes.

    state: state after earlier positions; None: start from 0 and do not compute the last state.   valid (B, N): True at
    unpadded positions.   segments (B, N): document numbers; the state is reset at each document.   chunk: positions per
    chunk.
    """
    count = v.shape[2]
    if count == 0:
        return v, state
    if valid is not None:
        strength = strength * valid[:, None]
        log_decay = None if log_decay is None else log_decay * valid[:, None]
    size = min(chunk, count)
    rates = decays(log_decay, segments, v, size)
    q, k, v, strength = (cut(each, size) for each in (q, k, v, strength))
    strength = strength[..., None]
    system = (strength * (k @ k.mT) * rates.within).tril(-1)
    reads = state is not None or system.shape[2] > 1
    right_side = strength * (torch.cat((v, k * rates.into[..., None]), -1) if reads else v)
    solved = _solved(system, right_side)
    values, read = solved.split((v.shape[-1], solved.shape[-1] - v.shape[-1]), -1)
    within, starts, ends = (q @ k.mT) * rates.within, q * rates.into[..., None], (k * rates.out[..., None]).mT
    outs, carried, chunks = [], state, system.shape[2]
    # Unbind instead of slicing, since the gradient of each slice is as large as the whole tensor.
    each = zip(*(t.unbind(2) for t in (values, read, within, starts, ends, rates.through)), strict=True)
    for number, (local, seen, scores, start, end, through) in enumerate(each, 1):
        corrected = local if carried is None else local - seen @ carried
        outs.append(scores @ corrected if carried is None else scores @ corrected + start @ carried)
        if number < chunks or state is not None:
            gained = end @ corrected
            carried = gained if carried is None else through[..., None, None] * carried + gained
    last = carried.to(state.dtype) if state is not None and carried is not None else None
    return torch.stack(outs, 2).flatten(2, 3)[:, :, :count], last


def _solved(system: Tensor, right_side: Tensor) -> Tensor:
    """Solve (1 + system) u = wanted for u; ``system`` is strictly lower triangular."""
    system, right = at_least_single(system), at_least_single(right_side)
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).to(right_side.dtype)
