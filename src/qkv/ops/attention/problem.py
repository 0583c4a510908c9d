"""What every implementation of attention is given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from qkv.ops.masks import Mask, Sites


@dataclass(frozen=True)
class Problem:
    """Everything beside q, k and v.

    mask, sites: which keys a query sees, and where both stand.
    scale: what the dot products are multiplied by, 1 / (temperature √Dk).
    slopes (H): ALiBi's, subtracted times the distance; None without.
    dropout: share of weights set to 0, the rest divided by what is left.
    """

    mask: Mask
    sites: Sites
    scale: float
    slopes: Tensor | None = None
    dropout: float = 0.0

    def bias(self, sites: Sites | None = None) -> Tensor | None:
        """ALiBi's -m_h (i - j), (B or 1, H, N, M), or None."""
        if self.slopes is None:
            return None
        sites = sites or self.sites
        distance = sites.query[:, None, :, None] - sites.key[:, None, None, :]
        return -self.slopes[None, :, None, None] * distance
