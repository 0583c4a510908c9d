"""What every implementation of attention is given."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from qkv.ops.masks import Mask, Sites


@dataclass(frozen=True)
class RelativeValues:
    """A vector of ``table`` (R, Dv) joins each value: Σ_j P_ij (v_j + table[index_ij]). index (B or 1, N, M)."""

    table: Tensor
    index: Tensor


@dataclass(frozen=True)
class Problem:
    """Everything beside q, k and v.

    mask, sites: which keys a query sees, and where both stand.
    scale: what the dot products are multiplied by, 1 / (temperature √Dk).
    slopes (H): ALiBi's, subtracted times the distance; None without.
    dropout: share of weights set to 0, the rest divided by what is left.
    added (B or 1, H or 1, N, M): joins the scaled scores, gradients included; None without.
    top_k: only so many of the largest scores of a query keep weight; None for all.
    values: what joins the values by their distance; None without.
    softcap: c, where scaled scores s become c · tanh(s / c) before anything joins them; None without.
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

    def capped(self, scores: Tensor) -> Tensor:
        """Scaled scores, none of them further from 0 than ``softcap`` (Gemma 2, 2024)."""
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def bias(self) -> Tensor | None:
        """What joins the scores: ALiBi's -m_h (i - j) and what is added, (B or 1, H or 1, N, M), or None."""
        if self.slopes is None:
            return self.added
        distance = self.sites.query[:, None, :, None] - self.sites.key[:, None, None, :]
        slope = -self.slopes[None, :, None, None] * distance
        return slope if self.added is None else slope + self.added

    def part(self, queries: slice, keys: slice) -> Problem:
        """The problem of some of the queries and keys."""
        added = None if self.added is None else self.added[:, :, queries, keys]
        values = None if self.values is None else replace(self.values, index=self.values.index[:, queries, keys])
        return replace(self, sites=self.sites.part(queries, keys), added=added, values=values)

    def chooses(self, num_keys: int) -> bool:
        """True if ``top_k`` leaves some of so many keys out."""
        return self.top_k is not None and self.top_k < num_keys
