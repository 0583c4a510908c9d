"""State that is corrected by the delta rule, by chunks: time and memory linear in the length.

    S_i = a_i S_{i-1} + b_i k_i^T (v_i - k_i a_i S_{i-1}),  o_i = q_i S_i

Within a chunk the corrections u_i = b_i (v_i - k_i a_i S_{i-1}) solve one triangular system,
(1 + tril(b k k^T ⊙ L, -1)) u = b (v - (k ⊙ into) S_entry), and S_i sums k_j^T u_j as if the values were u (Yang et al.
2024, DeltaNet; Yang et al. 2025, Gated DeltaNet).
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.at_least_single import at_least_single
from qkv.ops.counting import Unseen, declares
from qkv.ops.matrix_state.chunks import cut, decays, hidden_pairs


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
    """Half of each chunk's scores, of queries and of keys, is hidden; a matrix of all scores is never computed."""
    rows, count = v.shape[:2].numel(), v.shape[2]
    flops = 2 * rows * (2 * q.shape[3] + v.shape[3]) * hidden_pairs(count, max(1, min(chunk, count)))
    return Unseen(rows * count * count * q.element_size(), hidden=lambda computed: flops)


@declares(_scores)
def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Return (o (B, H, N, Dv), state after the last unpadded position); see ``reference`` for the shapes.

    valid (B, N): True at unpadded positions.   segments (B, N): document numbers; the state is reset at each document.
    chunk: positions per chunk.
    """
    count = v.shape[2]
    if count == 0:
        return v, state
    if valid is not None:
        strength = strength * valid[:, None]
        log_decay = None if log_decay is None else log_decay * valid[:, None]
    size = min(chunk, count)
    found = decays(log_decay, segments, v, size)
    q, k, v, strength = (cut(each, size) for each in (q, k, v, strength))
    strength = strength[..., None]
    system = (strength * (k @ k.mT) * found.within).tril(-1)
    wanted = strength * torch.cat((v, k * found.into[..., None]), -1)
    # The system has ones on its diagonal, which need not be written.
    solved = torch.linalg.solve_triangular(
        at_least_single(system), at_least_single(wanted), upper=False, unitriangular=True
    ).to(v.dtype)
    values, read = solved.split((v.shape[-1], k.shape[-1]), -1)
    ends = (k * found.out[..., None]).mT
    entries, corrected, kept = [], [], state.to(values.dtype)
    for own, seen, end, through in zip(
        values.unbind(2), read.unbind(2), ends.unbind(2), found.through.unbind(2), strict=True
    ):
        entries.append(kept)
        corrected.append(own - seen @ kept)
        kept = through[..., None, None] * kept + end @ corrected[-1]
    inside = ((q @ k.mT) * found.within) @ torch.stack(corrected, 2)
    out = inside + (q * found.into[..., None]) @ torch.stack(entries, 2)
    return out.flatten(2, 3)[:, :, :count], kept.to(state.dtype)
