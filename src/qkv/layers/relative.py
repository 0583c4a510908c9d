"""Relative positions inside attention: terms added to scores and to values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.table import Table
from qkv.ops.attention.problem import RelativeValues
from qkv.ops.masks import Sites
from qkv.ops.positions import alibi_slopes, clipped_distances, distance_buckets
from qkv.spec import branches, parts


class Relative(Table):
    """Base class of relative position terms of attention."""

    def added(self, q: Tensor, sites: Sites, scale: float) -> Tensor:
        """Term added to the scaled scores, (B or 1, H, N, M). q (B, H, N, Dk); scale: factor of the scores."""
        raise NotImplementedError

    def values(self, sites: Sites) -> RelativeValues | None:
        """Term added to the values, or None."""
        return None


class Shaw(Relative):
    """scale · q_i · r_c, c = clip(j - i, -k, k) (Shaw et al. 2018).

    Tables, shared by all heads: keys (2 k + 1, Dk), values (2 k + 1, Dv) or None. Initialised to 0.
    """

    def __init__(self, part: parts.Shaw, widths: tuple[int, int]):
        super().__init__()
        self.reach, count = part.max_distance, 2 * part.max_distance + 1
        self.key_table = nn.Parameter(torch.zeros(count, widths[0]))
        self.value_table = nn.Parameter(torch.zeros(count, widths[1])) if part.values else None

    def _index(self, sites: Sites) -> Tensor:
        return clipped_distances(sites.query, sites.key, self.reach)

    def added(self, q: Tensor, sites: Sites, scale: float) -> Tensor:
        by_distance = (q * scale) @ self.key_table.t().to(q.dtype)
        return by_distance.gather(-1, self._index(sites)[:, None].expand(*q.shape[:3], -1))

    def values(self, sites: Sites) -> RelativeValues | None:
        return None if self.value_table is None else RelativeValues(self.value_table, self._index(sites))


class SharedTable(Table):
    """Base class of distance tables that the layers of a stack share if ``part.shared``."""

    part: Any

    @property
    def key(self) -> Hashable:
        """Layers with equal keys share a table."""
        raise NotImplementedError

    def read_from(self, owner: Any) -> None:
        """Replace the own table by that of ``owner``, which has an equal key."""
        raise NotImplementedError


class T5Buckets(Relative, SharedTable):
    """table[bucket(j - i)], one unscaled bias per head (T5, Raffel et al. 2020). table (buckets, H), initialised to 0.

    Each layer has its own table; with ``shared`` all layers use that of the first.
    """

    def __init__(self, part: parts.T5Buckets, num_heads: int, causal: bool):
        super().__init__()
        self.part, self.num_heads, self.causal = part, num_heads, causal
        self.table: nn.Parameter | None = nn.Parameter(torch.zeros(part.num_buckets, num_heads))
        # In a tuple, so that the owner's weights are not registered twice.
        self.owner: tuple[T5Buckets, ...] = ()

    @property
    def key(self) -> tuple[parts.T5Buckets, int, bool]:
        return self.part, self.num_heads, self.causal

    def read_from(self, owner: T5Buckets) -> None:
        self.table, self.owner = None, (owner,)

    def added(self, q: Tensor, sites: Sites, scale: float) -> Tensor:
        distance = sites.key[:, None, :] - sites.query[:, :, None]
        buckets = distance_buckets(distance, self.part.num_buckets, self.part.max_distance, self.causal)
        table = self.owner[0].table if self.table is None else self.table
        assert table is not None
        return F.embedding(buckets, table).permute(0, 3, 1, 2).to(q.dtype)


class RoundedAlibi(Relative):
    """m_h j with m_h, j and the product rounded to bf16, times the scores' scale if ``part.scaled`` (Falcon, Almazrouei et al. 2023)."""

    def __init__(self, part: parts.Alibi, num_heads: int):
        super().__init__()
        self.part, self.num_heads = part, num_heads

    def added(self, q: Tensor, sites: Sites, scale: float) -> Tensor:
        slopes = alibi_slopes(self.num_heads, q.device).bfloat16()
        rounded = slopes[None, :, None, None] * sites.key.bfloat16()[:, None, None, :]
        return (rounded.to(q.dtype) * (scale if self.part.scaled else 1.0)).expand(-1, -1, q.shape[2], -1)


def share_tables(modules: Iterable[nn.Module]) -> None:
    """Make each layer with a ``shared`` table use that of the first layer with an equal key."""
    owners: dict[Hashable, SharedTable] = {}
    for module in modules:
        if isinstance(module, SharedTable) and module.part.shared:
            owner = owners.setdefault(module.key, module)
            if owner is not module:
                module.read_from(owner)


def build_relative(part: branches.Attention, width: int) -> Relative | None:
    """Build the module of the part's relative positions; None for RoPE, exact ALiBi and none, which need no module."""
    match part.relative:
        case parts.Shaw():
            return Shaw(part.relative, part.dims(width))
        case parts.T5Buckets():
            return T5Buckets(part.relative, part.num_heads, part.causal)
        case parts.Alibi(rounded="bf16"):
            return RoundedAlibi(part.relative, part.num_heads)
        case _:
            return None
