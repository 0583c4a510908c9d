"""LSH attention (Reformer, Kitaev et al. 2020): attention within chunks of positions sorted by hash bucket.

h_r(x) = argmax(x R_r ; -x R_r)                                     bucket of x in round r
S_ir = chunk of i and its neighbouring chunks, sorted by h_r         the rounds form one cyclic sequence of chunks
z_ir = log Σ_{j ∈ S_ir} exp(s_ij)        s_ij = q_i · k_j            -10⁵ for j = i, hidden keys at -inf
O_i = Σ_r softmax_r(z_ir) Σ_{j ∈ S_ir} exp(s_ij - z_ir) v_j

q, k (B, H, N, Dk)   v (B, H, N, Dv)   O (B, H, N, Dv)   R (H, Dk, rounds, ½ Σ factors)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single
from qkv.ops.masks import Mask, Sites
from qkv.ops.selection.counting import Unseen, declares

SELF = -1e5
"""Score of a position with itself, as in the paper; it has an effect only if no other key is visible."""


@dataclass(frozen=True)
class Hashing:
    """Parameters of the hashing in LSH attention.

    rounds: number of hash rounds, each with its own random rotations.   factors: their product is the number of
    buckets. chunk: positions per chunk.   before, after: number of preceding and following chunks attended to.   seed:
    seed of the random rotations.
    """

    rounds: int
    factors: tuple[int, ...]
    chunk: int
    before: int
    after: int
    seed: int


@dataclass(frozen=True)
class RowPositions:
    """Positions and visibility of a batch of rows.

    lengths (B): number of unpadded positions.   positions (B, N).   mask: visibility predicate.   prefix (B): prefix
    length of each row.   given (B, N, N): visible keys, combined with the mask by logical and.
    """

    lengths: Tensor
    positions: Tensor
    mask: Mask
    prefix: Tensor | None = None
    given: Tensor | None = None


def rotations(hashing: Hashing, num_heads: int, head_dim: int) -> Tensor:
    """Generate random rotations R (H, Dk, rounds, ½ Σ factors); equal for equal seeds on every device and dtype."""
    generator = torch.Generator().manual_seed(hashing.seed)
    shape = num_heads, head_dim, hashing.rounds, sum(hashing.factors) // 2
    return torch.randn(shape, generator=generator, device="cpu")


def buckets(x: Tensor, hashing: Hashing) -> Tensor:
    """Compute the LSH bucket of each vector of x in each round, without gradient: (B, H, N, Dk) -> (B, H, rounds, N).

    With several factors, the bucket number has one digit per factor; the first digit is the least significant.
    """
    x = x.detach()
    turned = torch.einsum("bhnd,hdrf->bhrnf", x, rotations(hashing, x.shape[1], x.shape[3]).to(x))
    codes, unit = torch.zeros((), dtype=torch.long, device=x.device), 1
    for part, factor in zip(
        turned.split([factor // 2 for factor in hashing.factors], -1), hashing.factors, strict=True
    ):
        codes = codes + unit * torch.cat((part, -part), -1).argmax(-1)
        unit *= factor
    return codes


@declares(lambda q, *arguments: Unseen(q.shape[:3].numel() * q.shape[2] * q.element_size()))
def attention(q: Tensor, k: Tensor, v: Tensor, row: RowPositions, hashing: Hashing, dropout: float = 0.0) -> Tensor:
    """Compute LSH attention O (B, H, N, Dv): each query attends to its own and neighbouring chunks in each round.

    Equal to full attention if these chunks contain all visible keys.
    """
    real = torch.arange(q.shape[2], device=q.device) < row.lengths[:, None]
    sorted_by = buckets(q, hashing).masked_fill(~real[:, None, None], 2**62).argsort(dim=-1, stable=True)
    queries, keys, there = _chunks(sorted_by, row.lengths, hashing)
    visible, itself = _visible(row, queries, keys, there), queries[..., None] == keys[..., None, :]
    outs, sums = _met(_at(q, queries), _at(k, keys), _at(v, keys), visible, itself, dropout)
    # Undo the sorting of each round.
    back = sorted_by.argsort(dim=-1)
    shape = *back.shape[:3], -1
    sums = sums.view(shape).gather(-1, back)
    outs = outs.view(*shape, v.shape[-1]).gather(-2, back[..., None].expand(*back.shape, v.shape[-1]))
    return (outs * sums.softmax(2)[..., None].to(outs.dtype)).sum(2)


def _chunks(sorted_by: Tensor, lengths: Tensor, hashing: Hashing) -> tuple[Tensor, Tensor, Tensor]:
    """Split the positions sorted by LSH bucket into C chunks, over all hash rounds.

    Returns (query positions (B, H, C, chunk), key positions (B, H, C, met · chunk), mask of unpadded keys), where each
    chunk attends to ``met`` = before + 1 + after chunks. The predecessor of a round's first chunk is the last unpadded
    chunk of the previous round, so that padding has no effect.
    """
    size, count = hashing.chunk, sorted_by.shape[-1]
    each = -(-count // size)
    places = F.pad(sorted_by, (0, each * size - count)).unflatten(-1, (each, size)).flatten(2, 3)
    ranks = torch.arange(each * size, device=sorted_by.device).view(each, size)
    real = (ranks < lengths[:, None, None]).repeat(1, hashing.rounds, 1)
    chunks = (-(-lengths // size)).clamp(min=1)[:, None, None]
    chunk = torch.arange(each, device=sorted_by.device).repeat(hashing.rounds)[:, None]
    turn = torch.arange(hashing.rounds, device=sorted_by.device).repeat_interleave(each)[:, None]
    met = (turn * chunks + chunk + torch.arange(-hashing.before, hashing.after + 1, device=sorted_by.device)) % (
        hashing.rounds * chunks
    )
    met = met // chunks * each + met % chunks
    keys = places.gather(2, met.flatten(1)[:, None, :, None].expand(-1, places.shape[1], -1, size))
    there = real.gather(1, met.flatten(1)[..., None].expand(-1, -1, size))
    return places, keys.unflatten(2, met.shape[1:]).flatten(3), there.unflatten(1, met.shape[1:]).flatten(2)[:, None]


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Gather x (B, H, N, D) at places (B, H, C, n): (B, H, C, n, D)."""
    index = places.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, index).unflatten(2, places.shape[2:])


def _visible(row: RowPositions, queries: Tensor, keys: Tensor, there: Tensor) -> Tensor:
    """Build a mask (B, H, C, chunk, met · chunk), True for keys that a query sees. ``there``: unpadded keys."""
    repeated = queries.shape[1] * queries.shape[2]
    positions = row.positions[:, None].expand(-1, queries.shape[1], -1)
    at = [positions.gather(2, places.flatten(2)).view(-1, places.shape[-1]) for places in (queries, keys)]
    at[1] = at[1].masked_fill(~there.expand_as(keys).reshape(at[1].shape), -1)
    prefix = None if row.prefix is None else row.prefix.repeat_interleave(repeated)
    seen = Sites(at[0], at[1], prefix=prefix).visible(row.mask, 1).view(*queries.shape, -1)
    if row.given is None:
        return seen
    batch = torch.arange(queries.shape[0], device=queries.device)[:, None, None, None, None]
    return seen & row.given[batch, queries[..., None], keys[..., None, :]]


def _met(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, itself: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Compute attention within chunks; return (outputs (…, n, Dv), log-sum-exp of the scores (…, n)) of n queries.

    ``itself``: True where key and query are the same position. The output of a query without visible keys is 0.
    """
    scores = at_least_single(q @ k.transpose(-1, -2))
    scores = scores.masked_fill(itself, SELF).masked_fill(~visible, -torch.inf)
    blind = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    # Not exp(s - z), which has an error of half a per cent in float32 for s and z near -10⁵.
    weights = scores.softmax(-1).masked_fill(blind, 0.0).to(v.dtype)
    return F.dropout(weights, dropout) @ v, scores.logsumexp(-1)
