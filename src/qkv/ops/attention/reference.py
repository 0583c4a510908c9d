"""Reference implementation of scaled dot-product attention (Vaswani et al. 2017).

    P = softmax(scale · Q K^T + bias, hidden keys at -inf)        O = P V

``softcap`` c: scaled products s become c · tanh(s / c) (Gemma 2, 2024). ``top_k``: all but the k largest scores of a
query are set to -inf, ties broken by position (Gupta et al. 2021). ``values``: relative position vectors are added to
the values, O_i = Σ_j P_ij (v_j + r_ij) (Shaw et al. 2018). ``sink``: the softmax includes one more score, a logit per
head, whose weight is then discarded (gpt-oss, 2025).

    q (B, H, N, Dk)   k (B, G, M, Dk)   v (B, G, M, Dv)   P (B, H, N, M)   O (B, H, N, Dv)

G divides H: head h uses K/V head h // (H / G) (grouped-query attention, Ainslie et al. 2023). N and M may differ, and
so may Dk and Dv. The output of a query without visible keys is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention.twins.largest import largest
from qkv.ops.masks import Mask, Sites


@dataclass(frozen=True)
class RelativeValues:
    """Relative position vectors added to values: Σ_j P_ij (v_j + table[index_ij]).

    table (R, Dv), index (B or 1, N, M).
    """

    table: Tensor
    index: Tensor


@dataclass(frozen=True)
class ScoreTerm:
    """Term of the scaled scores as a function (queries (B, H, n, Dk), their sites) -> (B or 1, H, n, m).

    It can be computed for some keys at a time. tables: weights that it reads, which have a gradient.
    """

    compute: Callable[[Tensor, Sites], Tensor | None]
    tables: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class AttentionProblem:
    """Arguments of attention besides q, k and v, the same for all implementations. None: not used.

    mask, sites: visibility predicate, and positions of queries and keys. scale: factor of the dot products, 1 /
    (temperature √Dk). slopes (H): ALiBi slopes; slope · (i - j) is subtracted from the scores. dropout: probability
    that a weight is set to 0; the others are divided by 1 - dropout. added (B or 1, H or 1, N, M): differentiable term
    added to the scaled scores. top_k: number of largest scores per query; all other keys get the weight 0. values:
    relative position vectors added to the values. softcap: c; scaled scores s become c · tanh(s / c) before other terms
    are added. sink (H): logit per head that takes part in the softmax but has no value. term: function that computes
    ``added``, for attention to keys that are elsewhere (``qkv.parallel.context``), which alone reads it.
    """

    mask: Mask
    sites: Sites
    scale: float
    slopes: Tensor | None = None
    dropout: float = 0.0
    added: Tensor | None = None
    top_k: int | None = None
    values: RelativeValues | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    term: ScoreTerm | None = None

    def capped(self, scores: Tensor) -> Tensor:
        """Apply the soft cap c · tanh(s / c) to scores (Gemma 2, 2024); without a soft cap, return them unchanged."""
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def bias(self) -> Tensor | None:
        """Compute the total score bias, ALiBi's -m_h (i - j) plus ``added``, (B or 1, H or 1, N, M); None if none."""
        if self.slopes is None:
            return self.added
        distance = self.sites.query[:, None, :, None] - self.sites.key[:, None, None, :]
        slope = -self.slopes[None, :, None, None] * distance
        return slope if self.added is None else slope + self.added

    def part(self, queries: slice, keys: slice) -> AttentionProblem:
        """Return the arguments restricted to a slice of the queries and a slice of the keys."""
        added = None if self.added is None else self.added[:, :, queries, keys]
        values = None if self.values is None else replace(self.values, index=self.values.index[:, queries, keys])
        return replace(self, sites=self.sites.part(queries, keys), added=added, values=values)

    def chooses(self, num_keys: int) -> bool:
        """Return whether ``top_k`` is set and smaller than ``num_keys``, so that some keys get no weight."""
        return self.top_k is not None and self.top_k < num_keys


def scores(q: Tensor, k: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute the scores (B, H, N, M) before the softmax, -inf where a key is hidden or not among the top k."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    result = problem.capped(problem.scale * q @ k.transpose(-1, -2))
    bias = problem.bias()
    if bias is not None:
        result = result + bias
    result = result.masked_fill(~problem.sites.visible(problem.mask, q.shape[1]), -torch.inf)
    if problem.chooses(k.shape[2]):
        assert problem.top_k is not None
        left_out = torch.ones_like(result, dtype=torch.bool).scatter(
            -1, largest(result, problem.top_k, problem.sites.key), False
        )
        result = result.masked_fill(left_out, -torch.inf)
    return result


def weights(q: Tensor, k: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention weights P (B, H, N, M), before dropout."""
    return normalised(scores(q, k, problem), problem).to(q.dtype)


def normalised(scores: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention weights P (B, H, N, M) from scores (B, H, N, M), -inf where a key is hidden."""
    if problem.sink is not None:
        sink = problem.sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    # A row with only -inf would give NaN. It is replaced before the softmax, so that its gradient is 0 too.
    blind = ~problem.sites.visible(problem.mask, scores.shape[1]).any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) for any ``problem``; see the module's docstring for the shapes."""
    return mix(weights(q, k, problem), v, problem)


def mix(weights: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) from weights P (B, H, N, M), with dropout."""
    p = F.dropout(weights, problem.dropout)
    out = p @ v.repeat_interleave(p.shape[1] // v.shape[1], dim=1)
    if problem.values is None:
        return out
    index = problem.values.index[:, None].expand(p.shape)
    by_distance = p.new_zeros(*p.shape[:3], problem.values.table.shape[0]).scatter_add(-1, index, p)
    return out + by_distance @ problem.values.table.to(p.dtype)
