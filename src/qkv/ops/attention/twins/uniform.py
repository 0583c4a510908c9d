"""Mean of the values of all visible keys: attention whose scores are equal.

    O_i = Σ_{j visible} v_j / (number of visible keys)        0 if there is none

v (B, G, M, Dv) -> O (B, G, N, Dv)
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.at_least_single import at_least_single
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins.sdpa import is_causal_here
from qkv.ops.selection.choices import by_reference


def uniform(v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute the mean O of the visible values, in linear time for a causal mask.

    Only mask and sites of ``problem`` are used. The mask must be the same for all heads.
    """
    sites = problem.sites
    if not by_reference() and sites.aligned and sites.query.shape[1] == v.shape[2] and is_causal_here(problem):
        counts = torch.arange(1, v.shape[2] + 1, device=v.device)[:, None]
        return (at_least_single(v).cumsum(2) / counts).to(v.dtype)
    return by_mask(v, problem)


def by_mask(v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute ``uniform`` for any mask, as a product with a matrix (N, M)."""
    visible = problem.sites.visible(problem.mask, 1).to(v.dtype)
    return visible @ v / visible.sum(-1, keepdim=True).clamp(min=1)
