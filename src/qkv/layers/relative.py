"""Relative positions inside attention: rotations of queries and keys, and terms added to scores and values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.layout import LookupTable
from qkv.layers.positions import rope_frequencies, rope_frequencies_of
from qkv.ops import positions as position_ops
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.reference import RelativeValues
from qkv.ops.masks import Sites
from qkv.ops.positions import clipped_distances, distance_buckets
from qkv.spec import branches, parts
from qkv.spec.mixers.latent_attention import DifferentialAttention
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError


class Relative(LookupTable):
    """Base class of relative positions inside attention.

    Subclasses may rotate queries and keys, add a bias to the scores, and add vectors to the values. Constructed as
    ``cls(part, attention, widths)``: its spec, the attention's spec, and the features of a head (per key, per value).
    """

    only_slopes: bool = False
    """True if only ``rotate`` and ``slopes`` have an effect: no bias, no added values."""
    replayable: bool = False
    """True if all results are computed on the device from positions on the device; see ``Branch.replayable``."""
    by_positions: bool = True
    """True if rotation and bias follow from a query, a key and their positions, and nothing is added to values.

    Then they are known where only some positions of a row are.
    """

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Weights that ``bias`` reads."""
        return tuple(self.parameters())

    def rotate(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Rotate queries (B, H, N, Dk) and keys (B, G, N, Dk) by their positions in ``context`` (RoPE)."""
        return q, k

    def slopes(self, q: Tensor, scale: float) -> Tensor | None:
        """Return slopes m (H) of the score bias m_h (j - i) (ALiBi), which needs no (N, M) tensor; None if unused."""
        return None

    def bias(self, q: Tensor, sites: Sites, scale: float, context: Context) -> Tensor | None:
        """Compute the bias (B or 1, H, N, M) added to the scaled scores of positions ``sites``; None if there is none.

        q (B, H, N, Dk): queries; scale: factor of the scores q · k; context: context of the queries.
        """
        return None

    def values(self, sites: Sites) -> RelativeValues | None:
        """Return relative position vectors to add to the values (Shaw et al. 2018); None if there are none."""
        return None


@implements(parts.NoRelative)
class NoRelative(Relative):
    """No relative positions: no rotation, bias or added values."""

    only_slopes = replayable = True

    def __init__(self, part: parts.NoRelative, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()


class Rope(Relative):
    """Rotary position embedding: rotates q and k by angles proportional to their position (RoPE, Su et al. 2021)."""

    only_slopes = replayable = True

    def __init__(self, part: parts.Rope, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.part, self.head_dim = part, widths[0]

    def rotate(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        cos, sin = self.angles(context, q.dtype)
        return position_ops.rotate(q, cos, sin), position_ops.rotate(k, cos, sin)

    def angles(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return ``rotation`` for queries in ``dtype``, computed once per forward pass for all layers."""
        kind = single_or_wider(dtype)
        return context.once(("rope", self.part, self.head_dim, dtype), lambda: self.rotation(context, kind))

    def rotation(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (cosines, sines) of the rotation angles at the positions of ``context``."""
        frequencies, magnitude = context.constant(
            ("rope", self.part, self.head_dim, dtype), lambda: self._turns(context, dtype)
        )
        return position_ops.rotation(context.positions[:, None], frequencies, magnitude)

    def _turns(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, float]:
        """Return (frequencies on the device of the positions, magnitude)."""
        frequencies, magnitude = rope_frequencies(self.part, self.part.rotated(self.head_dim), dtype)
        return frequencies.to(context.positions.device), magnitude


class LengthRope(Rope):
    """RoPE whose frequencies depend on the length of a row: the number of its positions so far (LongRoPE, 2024)."""

    by_positions = False

    def rotation(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        real = context.positions if context.valid is None else context.positions.masked_fill(~context.valid, -1)
        lengths = F.pad(real, (0, 1), value=-1).amax(-1)[:, None, None] + 1  # a call may have no positions
        rotated = self.part.rotated(self.head_dim)
        frequencies, magnitude = rope_frequencies_of(self.part, rotated, lengths, dtype)
        return position_ops.rotation(context.positions[:, None], frequencies, magnitude)


@implements(parts.Rope)
def _rope(part: parts.Rope, attention: branches.Attention, widths: tuple[int, int]) -> Rope:
    return (Rope if part.fixed_up_to is None else LengthRope)(part, attention, widths)


@implements(parts.Rope2D)
class Rope2D(Relative):
    """2-D RoPE: rotates half of the feature pairs of q and k by the row, the other half by the column (axial RoPE).

    Positions that are not on the grid are not rotated.
    """

    only_slopes = True
    by_positions = False

    def __init__(self, part: parts.Rope2D, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.part, self.head_dim = part, widths[0]

    def rotate(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        kind = single_or_wider(q.dtype)
        cos, sin = context.once(("rope 2d", self.part, self.head_dim, q.dtype), lambda: self.rotation(context, kind))
        return position_ops.rotate(q, cos, sin), position_ops.rotate(k, cos, sin)

    def rotation(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (cosines, sines) of the rotation angles at the positions of ``context``."""
        coordinates, axes = self._coordinates(context, dtype), self.part.axes
        rotated = self.part.rotated(self.head_dim) // axes
        frequencies = position_ops.inverse_frequencies(rotated, self.part.base, coordinates.device, dtype)
        return position_ops.grid_rotation(coordinates[:, None], frequencies)

    def _coordinates(self, context: Context, dtype: torch.dtype) -> Tensor:
        """Return the coordinates (1, N, 2) whose products with the frequencies are the angles."""
        numbers = context.on_grid(self.part.axes, self.part.kind)
        if not self.part.normalised or context.grid is None:
            return numbers
        return position_ops.normalised_coordinates(numbers, context.grid.sizes, dtype)


@implements(parts.RopeAxes)
class RopeAxes(Relative):
    """RoPE by positions on several axes, such as those of pictures among words (M-RoPE, Wang et al. 2024)."""

    only_slopes = True

    def __init__(self, part: parts.RopeAxes, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.part, self.rotated, self.axes = part, part.rope.rotated(widths[0]), part.axis_of_pairs()

    def rotate(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        kind = single_or_wider(q.dtype)
        cos, sin = context.once(("rope axes", self.part, self.rotated, q.dtype), lambda: self.rotation(context, kind))
        return position_ops.rotate(q, cos, sin), position_ops.rotate(k, cos, sin)

    def rotation(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (cosines, sines) of the rotation angles at the places of ``context``; see ``Context.places``."""
        places = context.positions[..., None] if context.places is None else context.places
        places = places.expand(*places.shape[:-1], self.part.place_axes)
        frequencies, magnitude = rope_frequencies(self.part.rope, self.rotated, dtype)
        return position_ops.axes_rotation(places[:, None], self.axes, frequencies.to(places.device), magnitude)


@implements(parts.Shaw)
class Shaw(Relative):
    """Learned relative position vectors: adds scale · q_i · r_c to scores, c = clip(j - i, -k, k) (Shaw et al. 2018).

    Tables, shared by all heads: keys (2 k + 1, Dk), values (2 k + 1, Dv) or None. Initialised to 0.
    """

    def __init__(self, part: parts.Shaw, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.reach, count = part.max_distance, 2 * part.max_distance + 1
        self.key_table = nn.Parameter(torch.zeros(count, widths[0]))
        self.value_table = nn.Parameter(torch.zeros(count, widths[1])) if part.values else None
        self.by_positions = not part.values

    def _index(self, sites: Sites) -> Tensor:
        return clipped_distances(sites.query, sites.key, self.reach)

    def bias(self, q: Tensor, sites: Sites, scale: float, context: Context) -> Tensor:
        by_distance = (q * scale) @ self.key_table.t().to(q.dtype)
        return by_distance.gather(-1, self._index(sites)[:, None].expand(*q.shape[:3], -1))

    def values(self, sites: Sites) -> RelativeValues | None:
        return None if self.value_table is None else RelativeValues(self.value_table, self._index(sites))


class SharedTable(LookupTable):
    """Base class of relative positions with a learned table that all layers of a stack share if ``part.shared``."""

    part: Any

    @property
    def key(self) -> Hashable:
        """Settings that decide sharing: layers with equal keys use the same table."""
        raise NotImplementedError

    def read_from(self, owner: Any) -> None:
        """Drop this layer's table and use the table of ``owner``, a layer with an equal key."""
        raise NotImplementedError


@implements(parts.T5Buckets)
class T5Buckets(Relative, SharedTable):
    """Learned bias table[bucket(j - i)] per head, added to the scores unscaled (T5, Raffel et al. 2020).

    table (buckets, H), initialised to 0. Each layer has its own table; with ``shared`` all layers use the table of the
    first layer.
    """

    def __init__(self, part: parts.T5Buckets, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.part, self.num_heads, self.causal = part, attention.num_heads, attention.causal
        self.table: nn.Parameter | None = nn.Parameter(torch.zeros(part.num_buckets, self.num_heads))
        # In a tuple, so that the owner's weights are not registered twice.
        self.owner: tuple[T5Buckets, ...] = ()

    @property
    def key(self) -> tuple[parts.T5Buckets, int, bool]:
        return self.part, self.num_heads, self.causal

    def read_from(self, owner: T5Buckets) -> None:
        self.table, self.owner = None, (owner,)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        return (*self.parameters(), *(weight for owner in self.owner for weight in owner.parameters()))

    def bias(self, q: Tensor, sites: Sites, scale: float, context: Context) -> Tensor:
        distance = sites.key[:, None, :] - sites.query[:, :, None]
        buckets = distance_buckets(distance, self.part.num_buckets, self.part.max_distance, self.causal)
        table = self.owner[0].table if self.table is None else self.table
        assert table is not None
        return F.embedding(buckets, table).permute(0, 3, 1, 2).to(q.dtype)


@implements(parts.Bias2D)
class Bias2D(Relative, SharedTable):
    """Learned bias table[row offset, column offset] per head, added to the scores (Swin, Liu et al. 2021).

    table ((2 R - 1)(2 C - 1) + 3, H) for a grid of R rows and C columns, initialised to 0. The last three rows are for
    pairs in which a position is not on the grid, such as a class token: the query, the key, or both (BEiT, Bao et al.
    2022). Each layer has its own table; with ``shared`` all layers use the table of the first layer.
    """

    by_positions = False

    def __init__(self, part: parts.Bias2D, attention: branches.Attention, widths: tuple[int, int]):
        """Create the table. Raises ``UserError`` if the sizes of the grid are unknown."""
        super().__init__()
        if part.sizes is None:
            raise UserError(f"the grid of {part.kind!r} is unknown without image patches; set sizes")
        self.part, (rows, columns) = part, part.sizes
        self.sizes, self.num_heads = (rows, columns), attention.num_heads
        offsets = (2 * rows - 1) * (2 * columns - 1)
        self.table: nn.Parameter | None = nn.Parameter(torch.zeros(offsets + 3, self.num_heads))
        # In a tuple, so that the owner's weights are not registered twice.
        self.owner: tuple[Bias2D, ...] = ()

    @property
    def key(self) -> tuple[parts.Bias2D, int]:
        return self.part, self.num_heads

    def read_from(self, owner: Bias2D) -> None:
        self.table, self.owner = None, (owner,)

    def bias(self, q: Tensor, sites: Sites, scale: float, context: Context) -> Tensor:
        index = context.once(("offsets", self.sizes), lambda: self._index(context))
        table = self.owner[0].table if self.table is None else self.table
        assert table is not None
        return F.embedding(index, table).permute(0, 3, 1, 2).to(q.dtype)

    def _index(self, context: Context) -> Tensor:
        coordinates = context.on_grid(self.part.axes, self.part.kind)
        if context.grid is not None and context.grid.sizes != self.sizes:
            grid_sizes, table_sizes = (" × ".join(map(str, sizes)) for sizes in (context.grid.sizes, self.sizes))
            raise UserError(
                f"{self.part.kind!r} has a table for a {table_sizes} grid, but the grid of the input is {grid_sizes}"
            )
        return position_ops.grid_offsets(coordinates, self.sizes)


@implements(parts.ShortestPath)
class ShortestPath(Relative):
    """Learned bias table[d_ij] per head, d_ij the length of the shortest path from node j to node i (Graphormer, 2021).

    table (max_distance + 2, H), initialised to 0; its last row is for pairs without a path. Without a graph all
    positions are neighbours: d_ij = 1 for i ≠ j.
    """

    by_positions = False

    def __init__(self, part: parts.ShortestPath, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(part.max_distance + 2, attention.num_heads))

    def bias(self, q: Tensor, sites: Sites, scale: float, context: Context) -> Tensor:
        distances = None if context.graph is None else context.graph.distances
        longest = self.table.shape[0] - 2
        if distances is None:
            distances = (sites.query[:, :, None] != sites.key[:, None, :]).long()
        lengths = torch.where(distances < 0, longest + 1, distances.clamp(max=longest))
        return F.embedding(lengths, self.table).permute(0, 3, 1, 2).to(q.dtype)


@implements(parts.Alibi)
class Alibi(Relative):
    """ALiBi: adds m_h (j - i) to the scores, times their scale if ``part.scaled`` (Press et al. 2022).

    ``rounded="bf16"``: m_h j, with m_h, j and the product rounded to bf16 (Falcon, Almazrouei et al. 2023).
    """

    def __init__(self, part: parts.Alibi, attention: branches.Attention, widths: tuple[int, int]):
        super().__init__()
        self.part, self.num_heads, self.only_slopes = part, attention.num_heads, part.rounded is None

    def slopes(self, q: Tensor, scale: float) -> Tensor | None:
        if self.part.rounded is not None:
            return None
        return position_ops.alibi_slopes(self.num_heads, q.device, single_or_wider(q.dtype)) * (
            scale if self.part.scaled else 1.0
        )

    def bias(self, q: Tensor, sites: Sites, scale: float, context: Context) -> Tensor | None:
        if self.part.rounded is None:
            return None
        slopes = position_ops.alibi_slopes(self.num_heads, q.device).bfloat16()
        rounded = slopes[None, :, None, None] * sites.key.bfloat16()[:, None, None, :]
        return (rounded.to(q.dtype) * (scale if self.part.scaled else 1.0)).expand(-1, -1, q.shape[2], -1)


def share_tables(modules: Iterable[nn.Module]) -> None:
    """Make each layer with ``part.shared`` use the table of the first layer with an equal key."""
    owners: dict[Hashable, SharedTable] = {}
    for module in modules:
        if isinstance(module, SharedTable) and module.part.shared:
            owner = owners.setdefault(module.key, module)
            if owner is not module:
                module.read_from(owner)


def build_relative(part: branches.Attention | DifferentialAttention, width: int) -> Relative:
    """Build the module of relative positions of an attention spec, for a model of ``width`` features."""
    return implementation(part.relative, "qkv.layers")(part.relative, part, part.dims(width))
