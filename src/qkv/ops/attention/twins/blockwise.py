"""Exact attention over blocks of keys with an online softmax (Milakov & Gimelshein 2018; Rabe & Staats 2021).

For each query, over key blocks b with scores s_b:

    m' = max(m, max s_b)     l' = l e^(m - m') + Σ e^(s_b - m')     a' = a e^(m - m') + e^(s_b - m') V_b     O = a / l

The running maximum m keeps the sums finite. Memory is linear in N: the backward pass recomputes each block's weights
from q, k and the stored log-sum-exp L = m + ln l:

    P = e^(S - L)    dV = P^T dO    dP = dO V^T    dS = P (dP - Σ dO O)    dQ = scale dS K    dK = scale dS^T Q

Blocks that the mask hides entirely are skipped, so that window attention costs O(N · window). Sums over blocks are
accumulated in fp32 for bf16 and fp16 inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Span

BLOCK = 256


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Compute attention O (B, H, N, Dv); see ``reference`` for the shapes.

    ``block``: number of queries and of keys per block. Supports neither dropout, nor a soft cap, nor a gradient of
    ``problem.added``.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    return _Blockwise.apply(q, k, v, problem, block)  # type: ignore[no-any-return]


def blocks(
    problem: AttentionProblem, num_queries: int, num_keys: int, block: int
) -> Iterator[tuple[slice, slice, bool]]:
    """Yield (queries, keys, whole) for each block that may have a visible pair; whole: all its pairs are visible."""
    offset = num_keys - num_queries
    for first in range(0, num_queries, block):
        queries = slice(first, min(first + block, num_queries))
        rows = queries.start + offset, queries.stop + offset - 1
        for keys in _seen(problem, rows, num_keys, block):
            aligned = problem.sites.aligned
            yield queries, keys, aligned and problem.mask.sees_all(Span(*rows, keys.start, keys.stop - 1))


def _seen(problem: AttentionProblem, rows: tuple[int, int], num_keys: int, block: int) -> Iterator[slice]:
    """Yield the blocks of keys, in ascending order, that a query at positions ``rows`` (first, last) may see.

    The range of keys is bisected, and hidden halves are skipped, so that for a window only a few blocks are tested, at
    any length.
    """
    waiting = [(0, -(-num_keys // block))]
    while waiting:
        first, last = waiting.pop()
        keys = slice(first * block, min(last * block, num_keys))
        if first == last or (
            problem.sites.aligned and not problem.mask.may_see(Span(*rows, keys.start, keys.stop - 1))
        ):
            continue
        if last - first == 1:
            yield keys
            continue
        middle = (first + last) // 2
        waiting += [(middle, last), (first, middle)]


def _scores(q: Tensor, k: Tensor, problem: AttentionProblem, where: tuple[slice, slice, bool]) -> Tensor:
    """Compute the scores (B, H, queries, keys) of one block in fp32 or wider, with hidden keys at -inf."""
    queries, keys, all_visible = where
    s = (problem.scale * q[:, :, queries] @ k[:, :, keys].transpose(-1, -2)).to(single_or_wider(q.dtype))
    part = problem.part(queries, keys)
    bias = part.bias()
    if bias is not None:
        s = s + bias
    return s if all_visible else s.masked_fill(~part.sites.visible(problem.mask, q.shape[1]), -torch.inf)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int) -> Tensor:
        wide = single_or_wider(q.dtype)
        largest = torch.full(q.shape[:3], -torch.inf, dtype=wide, device=q.device)
        total = torch.zeros_like(largest)
        out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=wide, device=q.device)
        with torch.autocast(q.device.type, enabled=False):
            for where in blocks(problem, q.shape[2], k.shape[2], block):
                queries, keys, _ = where
                s = _scores(q, k, problem, where)
                m = torch.maximum(largest[:, :, queries], s.amax(-1))
                base = m.masked_fill(m == -torch.inf, 0.0)  # no visible key so far: e^(-inf - 0) = 0, not NaN
                p = (s - base[..., None]).exp()
                decay = (largest[:, :, queries] - base).exp()
                total[:, :, queries] = total[:, :, queries] * decay + p.sum(-1)
                out[:, :, queries] = out[:, :, queries] * decay[..., None] + p.to(v.dtype) @ v[:, :, keys]
                largest[:, :, queries] = m
        blind = total == 0
        out = out / total.masked_fill(blind, 1.0)[..., None]
        # e^(S - inf) = 0: a query without visible keys has zero weights in the backward pass too.
        log_sum = (largest + total.log()).masked_fill(blind, torch.inf)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.problem, ctx.block = replace(problem, dropout=0.0), block
        return out.to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        problem, (grad,) = ctx.problem, grads
        dq, dk, dv = (torch.zeros_like(t, dtype=out.dtype) for t in (q, k, v))
        dot = (grad * out).sum(-1)
        with torch.autocast(q.device.type, enabled=False):
            for where in blocks(problem, q.shape[2], k.shape[2], ctx.block):
                queries, keys, _ = where
                p = (_scores(q, k, problem, where) - log_sum[:, :, queries, None]).exp()
                g = grad[:, :, queries]
                dv[:, :, keys] += p.to(g.dtype).transpose(-1, -2) @ g
                ds = (problem.scale * p * (g @ v[:, :, keys].transpose(-1, -2) - dot[:, :, queries, None])).to(q.dtype)
                dq[:, :, queries] += ds @ k[:, :, keys]
                dk[:, :, keys] += ds.transpose(-1, -2) @ q[:, :, queries]
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None
