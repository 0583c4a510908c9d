"""Context of a forward pass: positions, lengths, masks, memory and tap, passed to every branch beside x."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from qkv.layers.graph import Graph
from qkv.layers.tap import CallPositions, Tap
from qkv.ops.documents import starts_of
from qkv.state.arrival import Arrival, Counts
from qkv.system.errors import UserError

T = TypeVar("T")
MEMORY = "memory"
"""Default name of the memory that a cross-attention branch reads: the output of the encoder, or the latents."""


class Memory(NamedTuple):
    """Second input of a stack, read by cross-attention, such as the output of an encoder.

    vectors: one tensor (B, M, D) for all layers, or one tensor per layer.   lengths (B): number of unpadded vectors.
    """

    vectors: tuple[Tensor, ...]
    lengths: Tensor

    def of_layer(self, i: int) -> Memory:
        """Return the memory with only the vectors that layer ``i`` reads."""
        return self if len(self.vectors) == 1 else Memory(self.vectors[i : i + 1], self.lengths)

    def grid(self) -> tuple[Tensor, Tensor]:
        """Return (vectors (B, M, D), mask (B, M), True at unpadded vectors) of a memory with one tensor of vectors."""
        (vectors,) = self.vectors
        return vectors, torch.arange(vectors.shape[1], device=vectors.device) < self.lengths[:, None]


class PositionGrid(NamedTuple):
    """Positions on a grid in row-major order, after leading positions that are not on the grid, such as a class token.

    sizes: number of positions along each axis, such as (rows, columns).   leading: number of leading positions.
    """

    sizes: tuple[int, ...]
    leading: int = 0


Memories = Mapping[str, Memory]
"""Memories that cross-attention branches read, by name."""


@dataclass(frozen=True)
class Context:
    """Frozen context of a forward pass over (B, N, D): positions, padding, masks and memories that branches read.

    positions (B or 1, N): position of each vector in its row (for packed rows: in its document). lengths (B): number of
    unpadded positions, with padding on the right; None: no padding. segments, prefix, visible, types: see ``Signal``.
    grid: grid of the positions, as for image patches; None for a sequence. graph: edges between the nodes of graphs;
    None for other inputs. places (B or 1, N, A): positions on A axes for rotations by several, or one for all (A = 1);
    None: ``positions`` on all axes. behind (B): by how many the largest of them is behind the number of positions after
    the call; None: unchanged. memories: inputs of cross-attention, by name; empty in calls with a decoding state, which
    holds their keys and values. arrival: new positions of the call relative to the positions in the state; None without
    a state. memo: cache of ``once``. constants: cache of ``constant``, shared by several calls; None: no caching.
    """

    positions: Tensor
    lengths: Tensor | None = None
    segments: Tensor | None = None
    arrival: Arrival | None = None
    tap: Tap | None = None
    prefix: Tensor | None = None
    visible: Tensor | None = None
    memories: Memories = field(default_factory=dict)
    types: Tensor | None = None
    grid: PositionGrid | None = None
    graph: Graph | None = None
    places: Tensor | None = None
    behind: Counts | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    constants: dict[Hashable, Any] | None = field(default=None, repr=False, compare=False)

    def of_layer(self, i: int) -> Context:
        """Return a copy of the context with only the memory vectors that layer ``i`` reads."""
        if all(len(memory.vectors) == 1 for memory in self.memories.values()):
            return self
        return replace(self, memories={name: memory.of_layer(i) for name, memory in self.memories.items()})

    def announce(self, stack: str, count: int) -> None:
        """Tell the tap, if there is one, the ``count`` positions of the call that begins in ``stack``."""
        if self.tap is not None:
            self.tap.enter(
                stack, CallPositions(count, None if self.arrival is None else self.arrival.past, self.lengths)
            )

    @property
    def valid(self) -> Tensor | None:
        """Mask (B, N), True at unpadded positions; None if no row is padded."""
        if self.lengths is None:
            return None
        return self.once(
            "valid",
            lambda: torch.arange(self.positions.shape[1], device=self.positions.device) < self._lengths()[:, None],
        )

    @property
    def coordinates(self) -> Tensor:
        """Coordinates (B or 1, N, axes) of the positions.

        On a grid they count from 1 along each axis, and are 0 for leading positions. In a sequence they are its
        positions.
        """
        if self.grid is None:
            return self.positions[..., None]
        return self.once("coordinates", lambda: _coordinates(self.grid, self.positions))

    def on_grid(self, axes: int, kind: str) -> Tensor:
        """Return the coordinates (1, N, axes) of the positions on a grid of ``axes`` axes.

        ``kind``: kind of the part that needs them, for the message. Raises ``UserError`` if the positions are not on a
        grid, or on a grid with another number of axes.
        """
        sizes = () if self.grid is None else self.grid.sizes
        if len(sizes) != axes:
            place = f"a grid of {len(sizes)} axes" if sizes else "a sequence"
            raise UserError(
                f"{kind!r} needs positions on a grid of {axes} axes, such as image patches read in one call, but these "
                f"are on {place}; use another kind"
            )
        return self.coordinates

    @property
    def document_starts(self) -> Tensor | None:
        """Mask (B, N), True at the first position of each document; None if rows are not packed."""
        return None if self.segments is None else starts_of(self.segments)

    def _lengths(self) -> Tensor:
        assert self.lengths is not None
        return self.lengths

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, computed once per forward pass, cached under ``key`` and shared by all layers."""
        if torch.compiler.is_compiling():  # the compiler merges equal subexpressions, and cannot hash a spec
            return compute()
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    def constant(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, cached across the calls that share ``constants``.

        The result must not depend on the positions. An example is a table that is copied from the host.
        """
        if self.constants is None:
            return compute()
        if key not in self.constants:
            self.constants[key] = compute()
        return self.constants[key]


def _coordinates(grid: PositionGrid | None, like: Tensor) -> Tensor:
    """Compute coordinates (1, leading + Π sizes, axes) of the positions of ``grid``, on the device of ``like``."""
    assert grid is not None
    axes = [torch.arange(1, size + 1, device=like.device) for size in grid.sizes]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
    return torch.cat((places.new_zeros(grid.leading, len(axes)), places))[None]
