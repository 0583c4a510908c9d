"""Attention with a learned sink: a logit per head in the softmax, without a value (gpt-oss, 2025).

    P_ij = e^(s_ij) / (e^sink + Σ_j e^(s_ij))        O = P V

This equals attention to an additional key with score ``sink`` and value 0. Queries get an additional feature, sink /
scale; this feature is 1 in the new key and 0 in all other keys. So any attention implementation can compute it. The new
key is at position 0, visible to all queries, and all other positions are shifted by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention.reference import AttentionProblem, RelativeValues
from qkv.ops.attention.twins.sdpa import is_causal_here
from qkv.ops.dropout import dropout
from qkv.ops.masks import Causal, Full, Grid, Mask, Sites, Span

Attend = Callable[[Tensor, Tensor, Tensor, AttentionProblem], Tensor]


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, attend: Attend) -> Tensor:
    """Compute attention O (B, H, N, Dv) with ``problem.sink`` by ``attend``, an implementation without sinks.

    See ``reference`` for the shapes. Supports neither ``top_k`` nor a soft cap, which would apply to the sink, too.
    """
    if q.shape[2] == 0:
        return attend(q, k, v, replace(problem, sink=None))
    if q.shape[2] == 1 and problem.values is None:
        return _one_query(q, k, v, problem)
    plain = _is_plain(q, k, problem)
    q, k, longer = _longer(q, k, problem)
    v_ = F.pad(v, (0, 0, 1, 0))
    if not plain:
        return attend(q, k, v_, longer)
    # Add a query for the new key, and pad values to the key width: fast paths need equal numbers of queries and keys.
    wide = F.pad(v_, (0, q.shape[-1] - v.shape[-1])) if v.shape[-1] < q.shape[-1] else v_
    sites = replace(longer.sites, query=longer.sites.key)
    out = attend(F.pad(q, (0, 0, 1, 0)), k, wide, replace(longer, sites=sites))
    return out[:, :, 1:, : v.shape[-1]]


def _one_query(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute the output of one query per row without copying keys: each K/V head is read once for its query group."""
    assert problem.sink is not None
    heads, groups = q.shape[1], k.shape[1]
    grouped = q.unflatten(1, (groups, heads // groups)).squeeze(3)
    scores = (problem.scale * grouped @ k.mT).flatten(1, 2)[:, :, None]
    bias = problem.bias()
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~problem.sites.visible(problem.mask, heads), -torch.inf)
    sink = problem.sink.to(scores.dtype)[None, :, None, None].expand(q.shape[0], -1, 1, 1)
    p = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    p = dropout(p.to(v.dtype), problem.dropout)
    return (p.unflatten(1, (groups, heads // groups)).squeeze(3) @ v).flatten(1, 2)[:, :, None]


def _is_plain(q: Tensor, k: Tensor, problem: AttentionProblem) -> bool:
    """Return whether this is causal or full self-attention without bias, relative values or cached keys."""
    sites, biased = problem.sites, problem.slopes is not None or problem.added is not None or problem.values is not None
    if biased or not sites.aligned or q.shape[2] != k.shape[2]:
        return False
    return problem.mask.sees_all(sites.span()) or is_causal_here(problem)


def _longer(q: Tensor, k: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor, AttentionProblem]:
    """Return (queries with the sink feature, keys with the sink key prepended, the problem for these)."""
    assert problem.sink is not None
    feature = (problem.sink / problem.scale).to(q.dtype)[None, :, None, None].expand(*q.shape[:3], 1)
    keys = torch.cat((torch.zeros_like(k[:, :, :1]), k), 2)
    first = torch.zeros(keys.shape[2], 1, dtype=k.dtype, device=k.device)
    first[:1] = 1
    bias, values = problem.bias(), problem.values
    if values is not None:  # the sink adds no relative vector
        last = values.table.shape[0]
        values = RelativeValues(F.pad(values.table, (0, 0, 0, 1)), F.pad(values.index, (1, 0), value=last))
    changed = replace(
        problem,
        mask=_seen_by_all(problem),
        sites=_later(problem.sites),
        added=None if bias is None else F.pad(bias, (1, 0)),
        slopes=None,
        values=values,
        sink=None,
    )
    return torch.cat((q, feature), -1), torch.cat((keys, first.expand(*keys.shape[:3], 1)), -1), changed


def _later(sites: Sites) -> Sites:
    """Prepend a key at position 0, and shift all other positions by one; empty slots (-1) remain empty."""
    key = F.pad(torch.where(sites.key >= 0, sites.key + 1, -1), (1, 0))
    visible = None if sites.given is None else F.pad(sites.given, (1, 0), value=True)
    if sites.query_segment is not None and sites.key_segment is not None:  # the sink is in every document
        same = F.pad(sites.query_segment[:, :, None] == sites.key_segment[:, None, :], (1, 0), value=True)
        visible = same if visible is None else same & visible
    return replace(sites, query=sites.query + 1, key=key, query_segment=None, key_segment=None, given=visible)


def _seen_by_all(problem: AttentionProblem) -> Mask:
    """Return the mask for shifted positions: all queries see key 0; full and causal masks need no change."""
    aligned, sites = problem.sites.aligned, problem.sites
    if aligned and problem.mask.sees_all(sites.span()):
        return Full()
    if aligned and is_causal_here(problem):
        return Causal()
    return WithSink(problem.mask)


@dataclass(frozen=True)
class WithSink(Mask):
    """Mask ``mask`` shifted by one position, with a key at position 0 that all queries see."""

    mask: Mask

    def allowed(self, grid: Grid) -> Tensor:
        earlier = replace(grid, query=grid.query - 1, key=grid.key - 1)
        return self.mask.allowed(earlier) | (grid.key == 0)

    def may_see(self, span: Span) -> bool:
        return span.first_key == 0 or self.mask.may_see(_earlier(span))

    def sees_all(self, span: Span) -> bool:
        return span.last_key == 0 or self.mask.sees_all(_earlier(span))


def _earlier(span: Span) -> Span:
    """Shift a span back by one position, without the key at 0."""
    return Span(span.first_query - 1, span.last_query - 1, max(span.first_key - 1, 0), span.last_key - 1)
