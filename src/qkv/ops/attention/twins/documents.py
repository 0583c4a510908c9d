"""Attention in packed rows, document by document: no mask tensor, no scores between documents.

    row  [ doc 0 ][ doc 1   ][ doc 2 ][ padding ]      each document attends to itself, as in a row of its own

The output of padding is 0. The cost of a row of N positions is Σ n², not N², and a document
under a causal mask is an ordinary causal problem, for which the fast implementations need no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.documents import starts_of
from qkv.ops.masks import Causal, Full, Sites

_SHORTEST = 32
"""Average number of positions of a document below which one call per document takes longer than a mask."""

Attend = Callable[[Tensor, Tensor, Tensor, AttentionProblem], Tensor]
Parts = tuple[tuple[tuple[int, bool], ...], ...]
"""For each row, the length of each part, and whether it is a document; others are padding."""


def parts_of(q: Tensor, k: Tensor, problem: AttentionProblem) -> Parts | None:
    """Return the documents of packed rows on the CPU; None if the problem does not divide into them, or into many."""
    sites = problem.sites
    if sites.query_segment is None or sites.key_segment is None or sites.given is not None or sites.prefix is not None:
        return None
    beside = (problem.slopes, problem.added, problem.values, problem.top_k)
    if any(each is not None for each in beside) or type(problem.mask) not in (Causal, Full):
        return None
    if q.device.type != "cpu" or q.shape[2] != k.shape[2] or torch.compiler.is_compiling():
        return None
    return sites.once(("documents", len(q)), lambda: _parts(sites, len(q)))


def _parts(sites: Sites, rows: int) -> Parts | None:
    """Return the parts of all rows; None unless each document is in one place, with positions that grow by 1."""
    numbers, keys = sites.query_segment, sites.key
    assert numbers is not None
    assert sites.key_segment is not None
    query, key, numbers, of_keys = (t.expand(rows, -1) for t in (sites.query, keys, numbers, sites.key_segment))
    real = key >= 0
    if not torch.equal(numbers, of_keys) or not bool((query == key)[real].all()):
        return None
    starts = starts_of(numbers) | starts_of(real)
    grows = (key[:, 1:] - key[:, :-1] == 1) | starts[:, 1:] | ~real[:, 1:]
    if not bool(grows.all()) or int(starts.sum()) * _SHORTEST > numbers.numel():
        return None
    parts = tuple(_parts_of_row(*each) for each in zip(starts, real, numbers, strict=True))
    return None if None in parts else parts  # type: ignore[return-value]


def _parts_of_row(starts: Tensor, real: Tensor, numbers: Tensor) -> tuple[tuple[int, bool], ...] | None:
    """Return the parts of one row; None if two documents have one number."""
    begins = starts.nonzero()[:, 0]
    sizes = torch.diff(begins, append=begins.new_tensor([len(starts)]))
    holds = real[begins]
    if len(numbers[begins][holds].unique()) < int(holds.sum()):
        return None
    return tuple(zip(sizes.tolist(), holds.tolist(), strict=True))


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, parts: Parts, attend: Attend) -> Tensor:
    """Compute attention O (B, H, N, Dv). ``parts``: result of ``parts_of``; ``attend``: attention of one document."""
    rows = zip(q.split(1), k.split(1), v.split(1), parts, strict=True)
    return torch.cat([_row(*row, problem, attend) for row in rows])


def _row(
    q: Tensor, k: Tensor, v: Tensor, parts: tuple[tuple[int, bool], ...], problem: AttentionProblem, attend: Attend
) -> Tensor:
    sizes = [size for size, _ in parts]
    several = zip(q.split(sizes, 2), k.split(sizes, 2), v.split(sizes, 2), parts, strict=True)
    outputs = [
        attend(q, k, v, _alone(problem, size)) if holds else v.new_zeros(*q.shape[:3], v.shape[3])
        for q, k, v, (size, holds) in several
    ]
    return torch.cat(outputs, 2)


def _alone(problem: AttentionProblem, size: int) -> AttentionProblem:
    """Return the problem of one document of ``size`` positions."""
    positions = problem.sites.once(("positions of a document", size), lambda: torch.arange(size)[None])
    return replace(problem, sites=Sites(positions, positions, aligned=True))
