"""Position information inside attention that is learned or rounded: what joins its scores, and what joins its values."""

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
    """A part of attention that knows where queries and keys stand."""

    def added(self, q: Tensor, sites: Sites, scale: float) -> Tensor:
        """What joins the scaled scores, (B or 1, H, N, M). q (B, H, N, Dk); scale: what the scores are multiplied by."""
        raise NotImplementedError

    def values(self, sites: Sites) -> RelativeValues | None:
        """What joins the values, or None."""
        return None


class Shaw(Relative):
    """scale · q_i · r_c, c = clip(j - i, -k, k) (Shaw et al. 2018). keys (2 k + 1, Dk), shared by all heads; values (2 k + 1, Dv) or None.

    Starts at 0, as attention by content alone.
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
    """A table of the distance that the layers of a stack have in common if their ``part`` says ``shared``."""

    part: Any

    @property
    def key(self) -> Hashable:
        """Layers whose keys are equal can share a table."""
        raise NotImplementedError

    def read_from(self, owner: Any) -> None:
        """Use the table of another layer, with an equal key, in the place of an own one."""
        raise NotImplementedError


class T5Buckets(Relative, SharedTable):
    """table[bucket(j - i)], one number a head, not scaled (Raffel et al. 2020). table (buckets, H).

    Each layer has a table of its own, or with ``shared`` that of the stack's first. Starts at 0, as attention by content alone.
    """

    def __init__(self, part: parts.T5Buckets, num_heads: int, causal: bool):
        super().__init__()
        self.part, self.num_heads, self.causal = part, num_heads, causal
        self.table: nn.Parameter | None = nn.Parameter(torch.zeros(part.num_buckets, num_heads))
        # In a tuple, so that another layer's weights are not registered as this one's too.
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
    """m_h j, with m_h, j and their product rounded to bf16; times the scores' scale where the part says so (Falcon, Almazrouei et al. 2023)."""

    def __init__(self, part: parts.Alibi, num_heads: int):
        super().__init__()
        self.part, self.num_heads = part, num_heads

    def added(self, q: Tensor, sites: Sites, scale: float) -> Tensor:
        slopes = alibi_slopes(self.num_heads, q.device).bfloat16()
        rounded = slopes[None, :, None, None] * sites.key.bfloat16()[:, None, None, :]
        return (rounded.to(q.dtype) * (scale if self.part.scaled else 1.0)).expand(-1, -1, q.shape[2], -1)


def share_tables(modules: Iterable[nn.Module]) -> None:
    """Let each layer whose table is ``shared`` read from the first one with the same."""
    owners: dict[Hashable, SharedTable] = {}
    for module in modules:
        if isinstance(module, SharedTable) and module.part.shared:
            owner = owners.setdefault(module.key, module)
            if owner is not module:
                module.read_from(owner)


def build_relative(part: branches.Attention, width: int) -> Relative | None:
    """The module of a relative part that joins the scores with more than slopes; None of the others."""
    match part.relative:
        case parts.Shaw():
            return Shaw(part.relative, part.dims(width))
        case parts.T5Buckets():
            return T5Buckets(part.relative, part.num_heads, part.causal)
        case parts.Alibi(rounded="bf16"):
            return RoundedAlibi(part.relative, part.num_heads)
        case _:
            return None
