"""Shifts of features by one position, and window means, for positions on a grid in row-major order.

x (B, N, C): the first ``leading`` positions are not on the grid, and the other positions fill it; a sequence is a grid
with one axis. real (B, N): False at padding, where x is 0; None: no padding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MOST_AXES = max(_POOLS)
"""Maximum number of grid axes that ``window_mean`` supports."""


def shifted(x: Tensor, sizes: tuple[int, ...], leading: int = 0, real: Tensor | None = None) -> Tensor:
    """Shift groups of features by one position along each axis, in both directions (S²-MLP, Yu et al. 2021).

    There are 2 · axes groups of nearly equal size. The first group of a position is replaced by the group of the
    previous position along the first axis, the second by the group of the next position, and so on. If that position
    does not exist or is padding, a position keeps its own features. Leading positions are unchanged.
    """
    cells = x[:, leading:].unflatten(1, sizes)
    unpadded = None if real is None else real[:, leading:].unflatten(1, sizes)
    groups = cells.tensor_split(2 * len(sizes), -1)
    moved = [_moved(group, 1 + i // 2, i % 2 == 0, unpadded) for i, group in enumerate(groups)]
    return torch.cat((x[:, :leading], torch.cat(moved, -1).flatten(1, -2)), 1)


def _moved(x: Tensor, axis: int, previous: bool, real: Tensor | None) -> Tensor:
    """Return the features of the previous or next cell along ``axis``; at the border, those of the cell itself."""
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
    """Compute the mean over a window of ``size``^axes cells around each cell; padding and cells outside do not count.

    A window of even size has one cell more before than after. Leading positions are unchanged.
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
