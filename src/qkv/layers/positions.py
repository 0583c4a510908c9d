"""Position embeddings added to token embeddings, and RoPE frequencies."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import ROWS, Declared, Layout, Layouts, on_grid
from qkv.layers.linear.linear import Linear
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops import positions as ops
from qkv.ops.at_least_single import at_least_single, single_or_wider
from qkv.spec import parts as spec
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError


class Positions(Declared):
    """Base class of absolute position embeddings: integer positions (…) -> vectors (…, D).

    Constructed as ``cls(part, length, width)``; ``length``: number of positions, ``width``: D. Embeddings with several
    axes read coordinates on a grid, (…, axes) -> (…, D).
    """

    def places(self, context: Context) -> Tensor:
        """Return the input of ``forward``: positions (B or 1, N), or coordinates (…, axes) if there are several axes.

        Raises ``UserError`` if coordinates are needed and the positions are not on a grid.
        """
        return context.positions

    def vectors(self, context: Context, dtype: torch.dtype) -> Tensor:
        """Compute the position vectors (B or 1, N, D) of a forward pass. Raises ``UserError`` like ``places``."""
        return self(self.places(context), dtype)

    def layouts_on(self, grid: PositionGrid) -> Layouts:
        """Return the layouts of the tables if the positions lie on ``grid``, such as image patches."""
        return self.layouts()

    def initialise(self, std: float) -> None:
        """Initialise the learned tables from N(0, std²), if there are any."""

    @abstractmethod
    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the vectors (…, D) of ``positions`` (…), in ``dtype`` or a wider dtype."""


@implements(spec.Learned)
class Learned(Positions):
    """Learned position embeddings: position p reads row p + offset of a table (L + offset, D)."""

    def __init__(self, part: spec.Learned, length: int, width: int):
        super().__init__()
        self.offset = part.offset
        self.table = nn.Parameter(torch.zeros(length + part.offset, width))

    def layouts(self) -> Layouts:
        return {"table": ROWS}

    def layouts_on(self, grid: PositionGrid) -> Layouts:
        return {"table": on_grid(grid.sizes, self.offset + grid.leading)}

    def initialise(self, std: float) -> None:
        nn.init.normal_(self.table, std=std)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return F.embedding(positions + self.offset if self.offset else positions, self.table)


@implements(spec.LearnedGrid)
class LearnedGrid(Positions):
    """Learned vectors on a grid, resampled to the grid of the input: a table (leading + rows · columns, D)."""

    def __init__(self, part: spec.LearnedGrid, length: int, width: int):
        super().__init__()
        self.part = part
        self.table = nn.Parameter(torch.zeros(part.leading + part.shape[0] * part.shape[1], width))

    def layouts(self) -> Layouts:
        return {"table": on_grid(tuple(self.part.shape), self.part.leading)}

    def initialise(self, std: float) -> None:
        nn.init.normal_(self.table, std=std)

    def vectors(self, context: Context, dtype: torch.dtype) -> Tensor:
        context.on_grid(self.part.axes, self.part.kind)
        assert context.grid is not None
        if context.grid.leading != self.part.leading:
            raise UserError(
                f"the positions 'learned_grid' have {self.part.leading} leading vectors, but {context.grid.leading} "
                "positions precede the grid; set model.frontend.positions.leading to that number"
            )
        return F.embedding(context.positions, self.resampled(context.grid.sizes))

    def resampled(self, sizes: tuple[int, ...]) -> Tensor:
        """Resample the table to a grid of ``sizes`` (rows, columns), in row-major order after the leading positions."""
        leading, patches = self.table[: self.part.leading], self.table[self.part.leading :]
        return torch.cat(
            (leading, resample_grid(patches, (self.part.shape[0], self.part.shape[1]), (sizes[0], sizes[1])))
        )

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return F.embedding(positions, self.table)


@implements(spec.Axial)
class Axial(Positions):
    """Axial position embeddings: one table per axis, results summed or concatenated.

    Tables are (n_a, D) if summed or (n_a, d_a) if concatenated. Positions are in row-major order (last axis fastest).
    """

    def __init__(self, part: spec.Axial, length: int, width: int):
        super().__init__()
        self.part = part
        widths = part.widths or (width,) * len(part.shape)
        self.tables = nn.ParameterList(
            torch.zeros(size, vector_size) for size, vector_size in zip(part.shape, widths, strict=True)
        )

    def layouts(self) -> Layouts:
        return {f"tables.{axis}": ROWS for axis in range(len(self.part.shape))}

    def initialise(self, std: float) -> None:
        for table in self.tables:
            nn.init.normal_(table, std=std)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        parts, left = [], positions
        for size, table in zip(reversed(self.part.shape), reversed(list(self.tables)), strict=True):
            parts.append(F.embedding(left % size, table))
            left = left // size
        parts.reverse()
        return torch.cat(parts, -1) if self.part.widths else torch.stack(parts).sum(0)


@implements(spec.Sinusoidal)
class Sinusoidal(Positions):
    """Sinusoidal embeddings of position p + offset (Vaswani et al. 2017); see ``qkv.spec.parts.Sinusoidal``.

    PE(p, 2i) = sin(p / base^(2i/D))     PE(p, 2i+1) = cos(p / base^(2i/D))
    """

    def __init__(self, part: spec.Sinusoidal, length: int, width: int):
        super().__init__()
        self.offset = part.offset
        if part.closed:
            self.waves = partial(ops.closed_sinusoid, width=width, base=part.base, halves=part.halves)
        else:
            self.waves = partial(ops.sinusoid_halves if part.halves else ops.sinusoid, width=width, base=part.base)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.waves(positions + self.offset, dtype=single_or_wider(dtype))


@implements(spec.Sinusoidal2D)
class Sinusoidal2D(Positions):
    """2-D sinusoidal embeddings: the row in the first half of the features, the column in the second half.

    Coordinates count from 1; positions that are not on the grid, such as a class token, are at (0, 0).
    """

    def __init__(self, part: spec.Sinusoidal2D, length: int, width: int):
        super().__init__()
        self.part, self.width = part, width

    def places(self, context: Context) -> Tensor:
        return context.on_grid(self.part.axes, self.part.kind)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        rows, columns = positions.unbind(-1)
        return ops.sinusoid_2d(rows, columns, self.width, self.part.base, single_or_wider(dtype))


@implements(spec.Sinusoidal3D)
class Sinusoidal3D(Positions):
    """3-D sinusoidal embeddings: a third of the features each for the frame, the row and the column.

    Coordinates count from 1. If frames are unordered, the row is in the first half of the features and the column in
    the second half.
    """

    def __init__(self, part: spec.Sinusoidal3D, length: int, width: int):
        super().__init__()
        self.part, self.width = part, width

    def places(self, context: Context) -> Tensor:
        return context.on_grid(self.part.axes, self.part.kind)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        axes = positions.unbind(-1)[0 if self.part.ordered else 1 :]
        borders = [self.width * i // len(axes) for i in range(len(axes) + 1)]
        widths = [end - begin for begin, end in pairwise(borders)]
        parts = [
            ops.sinusoid(places, width, self.part.base, single_or_wider(dtype))
            for places, width in zip(axes, widths, strict=True)
        ]
        return torch.cat(parts, -1)


@implements(spec.LearnedSinusoidal)
class LearnedSinusoidal(Positions):
    """Learned function of a sinusoid: W2 φ(W1 PE(p) + b1) + b2 with sinusoidal PE(p) (Wang et al. 2022)."""

    def __init__(self, part: spec.LearnedSinusoidal, length: int, width: int):
        super().__init__()
        self.width, self.base = width, part.base
        hidden = part.hidden or width
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        waves = ops.sinusoid(positions, self.width, self.base, single_or_wider(self.up.weight.dtype)).to(
            self.up.weight.dtype
        )
        return self.down(self.activation(self.up(waves)))


@implements(spec.NoPositions)
def _no_positions(part: spec.NoPositions, length: int, width: int) -> None:
    return None


def build_positions(part: spec.Positions, length: int, width: int) -> Positions | None:
    """Build the position embeddings of a spec for ``length`` positions of ``width`` features; None if it has none."""
    return implementation(part, "qkv.layers")(part, length, width)


def resample_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resample 2-D position embeddings in row-major order to another grid: (h·w, D) -> (h'·w', D), bicubic.

    Adapts a vision Transformer to other image sizes (ViT, Dosovitskiy et al. 2021). ``old`` = (h, w),
    ``new`` = (h', w'). Raises ``UserError`` if the table has other than h·w rows.
    """
    if table.shape[0] != old[0] * old[1]:
        raise UserError(
            f"the table has {table.shape[0]} positions, but a grid of {old[0]} × {old[1]} has {old[0] * old[1]}"
        )
    if old == new:
        return table
    grid = at_least_single(table).unflatten(0, old).permute(2, 0, 1)[None]
    resampled = F.interpolate(grid, new, mode="bicubic", align_corners=False)[0]
    return resampled.permute(1, 2, 0).flatten(0, 1).to(table.dtype)


def regridded(table: Tensor, before: Layout, after: Layout) -> Tensor | None:
    """Resample a position table from the grid of layout ``before`` to the grid of ``after``; None if impossible.

    Both layouts must be grids with the same number of leading positions, and equal or two-dimensional.
    """
    if not before.kind == after.kind == "grid" or before.leading != after.leading:
        return None
    if before.sizes == after.sizes:
        return table
    if not len(before.sizes) == len(after.sizes) == 2:
        return None
    leading, rest = table[: before.leading], table[before.leading :]
    old, new = ((sizes[0], sizes[1]) for sizes in (before.sizes, after.sizes))
    return torch.cat((leading, resample_grid(rest, old, new)))


def rope_frequencies(part: spec.Rope, rotated: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, float]:
    """Return (RoPE's angle per position of each feature pair in radians, factor of q and k) after ``part.scaling``.

    ``rotated``: number of rotated features per head, twice the number of pairs. If the frequencies depend on the length
    of a row, those of rows no longer than in the original training are returned.
    """
    if part.scaling is None:
        return ops.inverse_frequencies(rotated, part.base, dtype=dtype), 1.0
    return implementation(part.scaling, "qkv.layers")(part.scaling, part.base, rotated, dtype)


def rope_frequencies_of(
    part: spec.Rope, rotated: int, lengths: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, float]:
    """Return (frequencies (…, rotated / 2), factor of q and k) for rows of ``lengths`` (…) positions.

    Like ``rope_frequencies``, for scalings whose frequencies depend on the length of a row.
    """
    assert part.scaling is not None
    return implementation(part.scaling, "qkv.layers")(part.scaling, part.base, rotated, dtype, lengths)


@implements(spec.DynamicScaling)
def _dynamic(
    part: spec.DynamicScaling, base: float, rotated: int, dtype: torch.dtype, lengths: Tensor | None = None
) -> tuple[Tensor, float]:
    if lengths is None:
        return ops.inverse_frequencies(rotated, base, dtype=dtype), 1.0
    beyond = lengths.clamp(min=part.original_length).to(dtype) / part.original_length - 1
    return ops.grown_frequencies(rotated, base, 1 + part.factor * beyond), 1.0


@implements(spec.LongRopeScaling)
def _longrope(
    part: spec.LongRopeScaling, base: float, rotated: int, dtype: torch.dtype, lengths: Tensor | None = None
) -> tuple[Tensor, float]:
    device = None if lengths is None else lengths.device
    plain = ops.inverse_frequencies(rotated, base, device, dtype)
    short, long = (plain / torch.tensor(each, device=device, dtype=dtype) for each in (part.short, part.long))
    if lengths is None:
        return short, part.magnitude
    return torch.where(lengths[..., None] > part.original_length, long, short), part.magnitude


@implements(spec.NTKScaling)
def _ntk(part: spec.NTKScaling, base: float, rotated: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    return ops.inverse_frequencies(rotated, ops.ntk_base(base, rotated, part.factor), dtype=dtype), 1.0


@implements(spec.LinearScaling)
def _linear(part: spec.LinearScaling, base: float, rotated: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    return ops.linear_scaling(ops.inverse_frequencies(rotated, base, dtype=dtype), part.factor), 1.0


@implements(spec.ProportionalScaling)
def _proportional(
    part: spec.ProportionalScaling, base: float, rotated: int, dtype: torch.dtype
) -> tuple[Tensor, float]:
    frequencies = ops.inverse_frequencies(rotated, base, dtype=dtype) / part.factor
    frequencies[int(part.fraction * rotated // 2) :] = 0.0
    return frequencies, 1.0


@implements(spec.Llama3Scaling)
def _llama3(part: spec.Llama3Scaling, base: float, rotated: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    plain, bounds = (
        ops.inverse_frequencies(rotated, base, dtype=dtype),
        (part.low_frequency_factor, part.high_frequency_factor),
    )
    return ops.llama3_scaling(plain, part.factor, part.original_length, *bounds), 1.0


@implements(spec.YarnScaling)
def _yarn(part: spec.YarnScaling, base: float, rotated: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    plain, betas = ops.inverse_frequencies(rotated, base, dtype=dtype), (part.beta_fast, part.beta_slow)
    scaled = ops.yarn_scaling(plain, part.factor, part.original_length, base, betas, part.whole_pairs)
    return scaled, ops.yarn_magnitude(part.factor) if part.magnitude is None else part.magnitude
