"""Neighbours of positions on a grid in row-major order: shifts of features by one position, and means of windows.

x (B, N, C): the first ``leading`` positions are not on the grid, and the others fill it; a sequence is a grid of one
axis. real (B, N): False at padding, where x is 0; None: no padding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MOST_AXES = max(_POOLS)
"""Maximum number of axes of a grid whose windows have a mean."""


def shifted(x: Tensor, sizes: tuple[int, ...], leading: int = 0, real: Tensor | None = None) -> Tensor:
    """Spatial shift of S²-MLP (Yu et al. 2021): groups of features move by one position along each axis, both ways.

    Of 2 · axes groups of nearly equal size, the first two are those of the previous and of the next position along the
    first axis, and so on. Where there is no such position, or padding, a position keeps its own features; so do leading
    positions.
    """
    cells = x[:, leading:].unflatten(1, sizes)
    known = None if real is None else real[:, leading:].unflatten(1, sizes)
    groups = cells.tensor_split(2 * len(sizes), -1)
    moved = [_moved(group, 1 + i // 2, i % 2 == 0, known) for i, group in enumerate(groups)]
    return torch.cat((x[:, :leading], torch.cat(moved, -1).flatten(1, -2)), 1)


def _moved(x: Tensor, axis: int, previous: bool, real: Tensor | None) -> Tensor:
    """Features of the previous or the next cell along ``axis``; where there is none, a cell's own."""
    if real is None:
        return _neighbour(x, axis, previous)
    return torch.where(_neighbour(real, axis, previous)[..., None], _neighbour(x, axis, previous), x)


def _neighbour(x: Tensor, axis: int, previous: bool) -> Tensor:
    count = x.shape[axis]
    if count < 2:
        return x
    if previous:
        return torch.cat((x.narrow(axis, 0, 1), x.narrow(axis, 0, count - 1)), axis)
    return torch.cat((x.narrow(axis, 1, count - 1), x.narrow(axis, count - 1, 1)), axis)


def window_mean(x: Tensor, size: int, sizes: tuple[int, ...], leading: int = 0, real: Tensor | None = None) -> Tensor:
    """Mean of the ``size``^axes cells around each one, itself included; padding and what lies outside do not count.

    The window of an even size has one cell more before than after. Leading positions keep their own vectors.
    """
    cells = x[:, leading:].unflatten(1, sizes).movedim(-1, 1)
    if not cells.numel():
        return x
    if real is None:
        weight = cells.new_ones(1, 1, *sizes)
    else:
        weight = real[:, None, leading:].unflatten(2, sizes).to(x.dtype)
    ends = (size // 2, size - 1 - size // 2) * len(sizes)

    def share(t: Tensor) -> Tensor:
        return _POOLS[len(sizes)](F.pad(t, ends), size, stride=1)

    mean = share(cells) / share(weight).clamp(min=0.5 * size ** -len(sizes))
    return torch.cat((x[:, :leading], mean.movedim(1, -1).flatten(1, -2)), 1)
