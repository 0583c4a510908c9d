"""Arguments of attention that all implementations share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from qkv.ops.masks import Mask, Sites


@dataclass(frozen=True)
class RelativeValues:
    """Relative position vectors added to values: Σ_j P_ij (v_j + table[index_ij]).

    table (R, Dv), index (B or 1, N, M).
    """

    table: Tensor
    index: Tensor


@dataclass(frozen=True)
class AttentionProblem:
    """Arguments of attention besides q, k and v, the same for all implementations. None: not used.

    mask, sites: visibility predicate, and positions of queries and keys. scale: factor of the dot products, 1 /
    (temperature √Dk). slopes (H): ALiBi slopes; slope · (i - j) is subtracted from the scores. dropout: probability
    that a weight is set to 0; the others are divided by 1 - dropout. added (B or 1, H or 1, N, M): differentiable term
    added to the scaled scores. top_k: number of largest scores per query that keep a weight. values: relative position
    vectors added to the values. softcap: c; scaled scores s become c · tanh(s / c) before other terms are added. sink
    (H): logit per head that takes part in the softmax but has no value.
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
        """Return whether ``top_k`` is set and smaller than ``num_keys``, so that only some keys get a weight."""
        return self.top_k is not None and self.top_k < num_keys
