"""Picks the implementation of attention from the shapes and the mask."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from qkv.ops.attention import banded, blockwise, reference, sdpa
from qkv.ops.attention.problem import Problem
from qkv.ops.choices import Choice, record

TWINS: dict[str, Callable[[Tensor, Tensor, Tensor, Problem], Tensor]] = {
    "reference": reference.attention,
    "sdpa": sdpa.attention,
    "banded": banded.attention,
    "blockwise": blockwise.attention,
}
# A dense mask above this many booleans is not built.
_LARGEST_MASK = 1 << 24


def attention(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """O (B, H, N, Dv) by the path that suits; see ``reference`` for the shapes and the equation."""
    return TWINS[choose(q, k, problem).twin](q, k, v, problem)


def choose(q: Tensor, k: Tensor, problem: Problem) -> Choice:
    """The twin for these shapes, and why."""
    num_queries, num_keys = q.shape[2], k.shape[2]
    if num_queries == 1:
        return record(Choice("attention", "one query", "sdpa", "one fused pass over the keys"))
    if _sees_a_band(problem, num_queries, num_keys):
        return record(
            Choice("attention", "window", "banded", "each block of queries meets its band of keys only, so cost follows the window")
        )
    if _needs_dense_mask(problem, num_queries, num_keys) and num_queries * num_keys > _LARGEST_MASK and problem.dropout == 0.0:
        return record(
            Choice("attention", "long, irregular mask", "blockwise", "a dense mask would not fit; memory stays linear in the length")
        )
    return record(Choice("attention", "sequence", "sdpa", "the fused kernel stores no scores"))


def _sees_a_band(problem: Problem, num_queries: int, num_keys: int) -> bool:
    """True if the mask hides at least half of the causal triangle block by block."""
    if not problem.sites.aligned or num_queries < 4 * banded.BLOCK:
        return False
    visible = sum(1 for _ in blockwise.blocks(problem, num_queries, num_keys, banded.BLOCK))
    rows = -(-num_queries // banded.BLOCK)
    columns = -(-num_keys // banded.BLOCK)
    return visible < rows * columns / 3


def _needs_dense_mask(problem: Problem, num_queries: int, num_keys: int) -> bool:
    sites = problem.sites
    if problem.slopes is not None or not (sites.aligned or sites.full):
        return True
    return not sites.full and not problem.mask.sees_all(sites.span()) and not sdpa.is_causal_here(problem)
