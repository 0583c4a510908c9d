"""Newton–Schulz orthogonalisation with fused multiply-add, in a given precision; see ``reference``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qkv.ops.orthogonal.reference import STEPS, A, B, C, norms
from qkv.ops.selection.onednn import allowed


def orthogonal(g: Tensor, dtype: torch.dtype, steps: int = STEPS) -> Tensor:
    """Orthogonalise g (K, M, N) or (M, N), M ≤ N, by ``steps`` iterations in ``dtype``; the result has g's dtype."""
    add = torch.addmm if g.dim() == 2 else torch.baddbmm
    x = (g / norms(g)).to(dtype)
    for _ in range(steps):
        a = x @ x.mT
        x = add(x, add(a, a, a, beta=B, alpha=C), x, beta=A)
    return x.to(g.dtype)


def through_onednn(g: Tensor, steps: int = STEPS) -> Tensor:
    """Orthogonalise in fp32 with oneDNN's matrix products."""
    with allowed():
        return orthogonal(g, torch.float32, steps)


TWINS: dict[str, Callable[..., Tensor]] = {
    "fp32": partial(orthogonal, dtype=torch.float32),
    "oneDNN": through_onednn,
    "bf16": partial(orthogonal, dtype=torch.bfloat16),
}
