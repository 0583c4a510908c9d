"""HyperAttention (Han et al. 2023): attention to a block of keys sorted by LSH code and to a sample of other keys.

    c(x) = index of the signs of x R in Gray code        vectors with equal or near c are similar
    B_i  = block of b keys, sorted by c, with the index of the block of q_i among the sorted queries
    O_i  = (Σ_{j ∈ B_i} e^{s_ij} v_j + Σ_{j ∈ T, j ∉ B_i} w_j e^{s_ij} v_j) / (the same sums without v_j)

T: m keys sampled from the n keys of a row without replacement. Uniform sampling: w = n / m. Sampling by the norm of the
values is priority sampling (Duffield, Lund & Thorup 2007): T has the m largest a_j / u_j, with a_j = |v_j|² + mean |v|²
and u_j uniform; w_j = max(1, τ / a_j), where τ is the largest a_j / u_j outside T. In both, each key's expected weight
is 1, so that numerator and normaliser are unbiased, and m = n is exact.

q, k (B, H, N, Dk)   v (B, H, N, Dv)   O (B, H, N, Dv)   R (H, Dk, bits)   u (B or 1, H, N)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single, single_or_wider
from qkv.ops.selection.counting import Unseen, declares


@dataclass(frozen=True)
class Estimation:
    """Parameters of the estimate.

    scale: factor of the scores.   block: b.   samples: m.   by_value: sample keys by the norm of their values.   leaf:
    positions per part with exact attention, for causal attention.
    """

    scale: float
    block: int
    samples: int
    by_value: bool
    leaf: int
    dropout: float = 0.0


class Chance(NamedTuple):
    """Random numbers: projections R (H, Dk, bits), and u (B or 1, H, N) for the sampling of keys."""

    projections: Tensor
    draws: Tensor


class Attended(NamedTuple):
    """Result of attention to a subset of the keys: outputs (B, H, N, Dv), and log-sum-exp of the scores (B, H, N)."""

    outs: Tensor
    sums: Tensor


def chance(seed: int, sizes: tuple[int, int, int], count: int, like: Tensor) -> Chance:
    """Generate the random numbers of HyperAttention from a seed.

    They are normal projections of ``sizes`` (H, Dk, bits), for LSH codes, and uniform u (1, H, N), N = ``count``, by
    which keys are sampled. The numbers u of the first positions do not depend on N.
    """
    generator = torch.Generator().manual_seed(seed)
    projections = torch.randn(sizes, generator=generator, device="cpu")
    draws = torch.rand(count, sizes[0], generator=generator, device="cpu").t()[None]
    return Chance(projections.to(like), draws.to(like.device))


def codes(x: Tensor, projections: Tensor) -> Tensor:
    """Compute c (B, H, N), the index of the signs of x R in Gray code: neighbouring codes differ in one sign."""
    signs = (x.detach() @ projections.to(x.dtype)) > 0
    places = signs.cumsum(-1) % 2
    return (places << torch.arange(places.shape[-1] - 1, -1, -1, device=x.device)).sum(-1)


def _stored(q: Tensor, *arguments: object) -> Unseen:
    return Unseen(q.shape[:3].numel() * q.shape[2] * q.element_size())


@declares(_stored)
def full(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, noise: Chance, how: Estimation) -> Tensor:
    """Estimate attention O of every query to all keys of its row. lengths (B): unpadded positions; None: all."""
    return _estimated(q, k, v, (lengths, lengths), noise, how).outs


@declares(_stored)
def causal(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, noise: Chance, how: Estimation) -> Tensor:
    """Estimate causal attention O. Padding is on the right, so that no other position attends to it.

    Positions are split into parts of ``leaf`` positions, within which causal attention is exact. Then in each pair of
    adjacent parts, the second part attends to the first by an estimate; then in pairs of pairs, and so on. So the keys
    that a position reads depend on its index, but not on the length of the row.
    """
    count, size = q.shape[2], how.leaf
    leaves, ends = _leaves(q, k, v, how), _ends(q, lengths)
    while size < count:
        leaves = _joined(leaves, _of_pairs(q, k, v, ends, noise, how, size))
        size *= 2
    return leaves.outs


def _ends(q: Tensor, lengths: Tensor | None) -> Tensor:
    return torch.full((q.shape[0],), q.shape[2], device=q.device) if lengths is None else lengths


def _leaves(q: Tensor, k: Tensor, v: Tensor, how: Estimation) -> Attended:
    """Compute exact causal attention within parts of ``leaf`` positions."""
    count, size = q.shape[2], how.leaf
    q, k, v = (F.pad(t, (0, 0, 0, -count % size)).unflatten(2, (-1, size)) for t in (q, k, v))
    later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    scores = at_least_single((q * how.scale) @ k.mT).masked_fill(later, -torch.inf)
    sums = scores.logsumexp(-1)
    weights = F.dropout((scores - sums[..., None]).exp().to(v.dtype), how.dropout)
    return Attended((weights @ v).flatten(2, 3)[:, :, :count], sums.flatten(2)[:, :, :count])


def _of_pairs(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, noise: Chance, how: Estimation, size: int) -> Attended:
    """Estimate attention of the second part of each pair to the keys of the first; parts have ``size`` positions."""
    rows, count = q.shape[0], q.shape[2]
    pairs = -(-(count - size) // (2 * size))
    reach = 2 * size * pairs

    def halves(x: Tensor) -> Tensor:
        """Split x (B, H, N, D) into first and second parts of pairs -> (2, B · pairs, H, size, D)."""
        x = F.pad(x, (0, 0, 0, reach - count)) if reach > count else x[:, :, :reach]
        return x.unflatten(2, (pairs, 2, size)).permute(3, 0, 2, 1, 4, 5).flatten(1, 2)

    starts = (2 * torch.arange(pairs, device=q.device) + 1) * size
    left = (ends[:, None] - starts).clamp(0, size).flatten()
    draws = halves(noise.draws.expand(rows, -1, -1)[..., None])[0, ..., 0]
    pair_chance = noise._replace(draws=draws)
    attended = _estimated(halves(q)[1], halves(k)[0], halves(v)[0], (left, None), pair_chance, how)

    def together(x: Tensor, empty: float) -> Tensor:
        """Scatter x (B · pairs, H, size, D) of the second parts to (B, H, N, D), filled with ``empty``."""
        x = x.unflatten(0, (rows, pairs)).transpose(1, 2)
        x = torch.stack((torch.full_like(x, empty), x), 3).flatten(2, 4)
        return F.pad(x, (0, 0, 0, count - reach), value=empty) if reach < count else x[:, :, :count]

    return Attended(together(attended.outs, 0.0), together(attended.sums[..., None], -torch.inf)[..., 0])


def _joined(first: Attended, second: Attended) -> Attended:
    """Merge attention to two disjoint sets of keys."""
    sums = torch.logaddexp(first.sums, second.sums)
    shares = ((part.sums - sums).exp()[..., None].to(part.outs.dtype) for part in (first, second))
    outs = [share * part.outs for share, part in zip(shares, (first, second), strict=True)]
    return Attended(outs[0] + outs[1], sums)


def _estimated(
    q: Tensor, k: Tensor, v: Tensor, lengths: tuple[Tensor | None, Tensor | None], noise: Chance, how: Estimation
) -> Attended:
    """Estimate attention from block and sample. lengths: unpadded positions (B) of (queries, keys); None: all."""
    size = min(how.block, q.shape[2])
    by_query, by_key = (_sorted(codes(x, noise.projections), n) for x, n in zip((q, k), lengths, strict=True))
    queries, keys, values = _blocks(q * how.scale, by_query, size), _blocks(k, by_key, size), _blocks(v, by_key, size)
    there = torch.arange(keys.shape[2] * size, device=q.device) < _ends(k, lengths[1])[:, None]
    scores = at_least_single(queries @ keys.mT).masked_fill(~there.view(len(q), 1, -1, 1, size), -torch.inf)
    alone = keys.shape[2] == 1  # one block holds all keys
    if not alone:
        sample, weights = _drawn(v, lengths[1], noise.draws, how)
        scores = torch.cat((scores, _sample_scores(queries, k, by_key, sample, weights)), -1)
    blind = scores.detach().amax(-1, keepdim=True) == -torch.inf
    sums = scores.masked_fill(blind, 0.0).logsumexp(-1)
    shares = F.dropout((scores - sums[..., None]).exp().to(v.dtype), how.dropout)
    outs = (shares[..., :size] @ values).flatten(2, 3)
    if not alone:
        outs = outs + shares[..., size:].flatten(2, 3) @ _at(v, sample)
    back = by_query.argsort(-1)
    return Attended(_at(outs, back), sums.flatten(2).gather(-1, back))


def _sample_scores(queries: Tensor, k: Tensor, by_key: Tensor, sample: Tensor, weights: Tensor) -> Tensor:
    """Compute scores plus log weights (B, H, n, size, m) for sampled keys; -inf for keys in the query's block."""
    blocks, size = queries.shape[2:4]
    logits = (queries.flatten(2, 3) @ _at(k, sample).mT + weights[:, :, None]).unflatten(2, (blocks, size))
    block = by_key.argsort(-1).gather(-1, sample) // size
    inside = block[:, :, None] == torch.arange(blocks, device=k.device)[:, None]
    return at_least_single(logits).masked_fill(inside[..., None, :], -torch.inf)


def _sorted(code: Tensor, lengths: Tensor | None) -> Tensor:
    """Return positions (B, H, N) sorted by their codes, padding last."""
    if lengths is not None:
        real = torch.arange(code.shape[-1], device=code.device) < lengths[:, None]
        code = code.masked_fill(~real[:, None], 1 << 40)
    return code.argsort(dim=-1, stable=True)


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Gather x (B, H, N, D) at places (B, H, n): (B, H, n, D)."""
    return x.gather(2, places[..., None].expand(-1, -1, -1, x.shape[-1]))


def _blocks(x: Tensor, order: Tensor, size: int) -> Tensor:
    """Sort x (B, H, N, D) by ``order`` and split it into blocks (B, H, n, size, D), padded with 0."""
    return F.pad(_at(x, order), (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))


def _drawn(v: Tensor, lengths: Tensor | None, draws: Tensor, how: Estimation) -> tuple[Tensor, Tensor]:
    """Sample keys; return (their indices (B, H, m), logarithms of their weights, -inf for padding)."""
    count, ends = v.shape[2], _ends(v, lengths)[:, None, None]
    real = torch.arange(count, device=v.device) < ends
    most = min(how.samples, count)
    if not how.by_value:
        chosen = draws.expand(*v.shape[:3]).masked_fill(~real, 2.0).topk(most, largest=False, sorted=False).indices
        weights = (ends.to(single_or_wider(v.dtype)) / most).clamp(min=1).log().expand(chosen.shape)
        return chosen, weights.masked_fill(chosen >= ends, -torch.inf)
    norms = at_least_single(v.detach()).square().sum(-1) * real
    norms = norms + norms.sum(-1, keepdim=True) / ends.clamp(min=1) + torch.finfo(norms.dtype).tiny
    priorities = (norms / draws.clamp(min=1e-7)).masked_fill(~real, 0.0)
    ranked = priorities.topk(min(most + 1, count))
    chosen = ranked.indices[..., :most]
    left_out = ranked.values[..., most:].sum(-1, keepdim=True)  # 0 if no key is left out
    weights = (left_out / norms.gather(-1, chosen)).clamp(min=1).log()
    return chosen, weights.masked_fill(chosen >= ends, -torch.inf)
