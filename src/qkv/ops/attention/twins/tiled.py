"""Attention by blocks of queries as batched matrix products, each block with its range of visible keys.

For a block of queries c and its keys:

    S = scale · Q_c K^T, hidden keys at -inf     P = softmax(S)     O_c = P V

The backward pass recomputes S and P, so memory is linear in N:

    dV += P^T dO_c    dP = dO_c V^T    dS = P (dP - Σ dP P)    dQ_c = scale · dS K    dK += scale · dS^T Q_c

Keys hidden from a whole block are skipped: a causal mask halves the work. Faster than torch's fused kernel on
processors with fast batched matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins.blockwise import blocks
from qkv.ops.selection.onednn import allowed, available


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int | None = None) -> Tensor:
    """Compute attention O (B, H, N, Dv); see ``reference`` for the shapes. ``block``: number of queries per block.

    Not for ALiBi, a soft cap or dropout. Requires aligned sites, and a mask that is equal for all rows and heads and
    lets each query see at least one key.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    return _Tiled.apply(q, k, v, list(bands(problem, q.shape[2], k.shape[2], block)), problem.scale)  # type: ignore[no-any-return]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (rows, n, m) @ b (rows, m, l); in fp32 on the CPU by oneDNN, if that is exact in fp32."""
    if a.dtype == torch.float32 and a.device.type == "cpu" and not a.is_meta and available():
        with allowed():
            return torch.bmm(a, b)
    return torch.bmm(a, b)


class Band:
    """Block of queries with its range of visible keys, and the tiles of this range that need a mask."""

    def __init__(self, queries: slice, tiles: list[tuple[slice, bool]], problem: AttentionProblem):
        self.queries = queries
        self.keys = slice(tiles[0][0].start, tiles[-1][0].stop)
        by_start = {tile.start: whole for tile, whole in tiles}
        self.masked = []
        width = tiles[0][0].stop - tiles[0][0].start
        for start in range(self.keys.start, self.keys.stop, width):
            keys = slice(start, min(start + width, self.keys.stop))
            if not by_start.get(start, False):
                hidden = ~problem.sites.part(queries, keys).visible(problem.mask, 1)[0]
                self.masked.append((slice(start - self.keys.start, keys.stop - self.keys.start), hidden))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute attention weights P (B·H, queries, keys) of this block; q is already multiplied by the scale."""
        scores = _product(q[:, self.queries], k[:, self.keys].transpose(1, 2))
        for tile, hidden in self.masked:
            scores[:, :, tile].masked_fill_(hidden, -torch.inf)
        return scores.softmax(-1)


def bands(problem: AttentionProblem, num_queries: int, num_keys: int, block: int | None = None) -> Iterator[Band]:
    """Yield each block of queries with its range of visible keys. Default block: a quarter of the queries, 64–256."""
    block = block or min(max(num_queries // 4, 64), 256)
    tiles: dict[int, list[tuple[slice, bool]]] = {}
    for queries, keys, whole in blocks(problem, num_queries, num_keys, block):
        tiles.setdefault(queries.start, []).append((keys, whole))
    for first, seen in tiles.items():
        yield Band(slice(first, min(first + block, num_queries)), seen, problem)


def forward(q: Tensor, k: Tensor, v: Tensor, parts: list[Band], scale: float) -> Tensor:
    """Compute attention O (B, H, N, Dv), block by block. ``parts``: result of ``bands``.

    Requires as many K/V heads as query heads.
    """
    out = q.new_zeros(q.shape[0] * q.shape[1], q.shape[2], v.shape[-1])
    with torch.autocast(q.device.type, enabled=False):
        q_, k_, v_ = _joined(q * scale), _joined(k), _joined(v)
        for band in parts:
            out[:, band.queries] = _product(band.weights(q_, k_), v_[:, band.keys])
    return out.view(*q.shape[:3], -1)


def backward(
    grad: Tensor, inputs: tuple[Tensor, Tensor, Tensor], parts: list[Band], scale: float
) -> tuple[Tensor, ...]:
    """Compute the gradients (dQ, dK, dV) from ``grad`` of O and ``inputs`` (q, k, v)."""
    with torch.autocast(grad.device.type, enabled=False):
        q, k, v = _joined(inputs[0] * scale), _joined(inputs[1]), _joined(inputs[2])
        grad = _joined(grad)
        dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
        for band in parts:
            p = band.weights(q, k)
            g, keys = grad[:, band.queries], band.keys
            dv[:, keys] += _product(p.transpose(1, 2), g)
            dp = _product(g, v[:, keys].transpose(1, 2))
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)  # pyright: ignore[reportPrivateImportUsage]
            dq[:, band.queries] = _product(ds, k[:, keys])
            dk[:, keys] += _product(ds.transpose(1, 2), q[:, band.queries])
        dq *= scale
    return tuple(d.view(t.shape) for d, t in zip((dq, dk, dv), inputs, strict=True))


def _joined(t: Tensor) -> Tensor:
    """Merge batch and heads: (B, H, N, D) -> (B·H, N, D)."""
    return t.reshape(-1, *t.shape[2:])


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parts: list[Band], scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.options = parts, scale
        return forward(q, k, v, parts, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(grads[0], ctx.saved_tensors, *ctx.options), None, None
