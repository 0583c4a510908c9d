"""Windows of positions on a grid, which mixers read separately.

x (B, S1, …, Sn, C): features of the cells of a grid of n axes. A window has M cells along each axis.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F


def filled(x: Tensor, size: int) -> Tensor:
    """Fill up each axis of the grid with zeros at its end, to a multiple of ``size`` cells."""
    ends = [(0, -side % size) for side in x.shape[1:-1]]
    return F.pad(x, (0, 0, *(number for end in reversed(ends) for number in end)))


def windows_of(x: Tensor, size: int) -> Tensor:
    """Divide cells (B, S1, …, Sn, C) into windows (B, W, size^n, C), both in row-major order; S: multiples of size."""
    axes = x.dim() - 2
    sides = [number for side in x.shape[1:-1] for number in (side // size, size)]
    order = (0, *range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2), 2 * axes + 1)
    parts = x.reshape(x.shape[0], *sides, x.shape[-1]).permute(order)
    return parts.flatten(1, axes).flatten(2, -2)


def cells_of(windows: Tensor, size: int, sizes: tuple[int, ...]) -> Tensor:
    """Inverse of ``windows_of``: windows (B, W, size^n, C) -> cells (B, *sizes, C)."""
    axes = len(sizes)
    counts = [side // size for side in sizes]
    parts = windows.reshape(windows.shape[0], *counts, *(size,) * axes, windows.shape[-1])
    order = (0, *(number for i in range(axes) for number in (1 + i, 1 + axes + i)), 2 * axes + 1)
    return parts.permute(order).reshape(windows.shape[0], *sizes, windows.shape[-1])


def turned(x: Tensor, steps: int) -> Tensor:
    """Turn the cells (B, S1, …, Sn, C) by ``steps`` towards the start of each axis; the first come after the last."""
    axes = tuple(range(1, x.dim() - 1))
    return x.roll((-steps,) * len(axes), axes) if steps else x


def neighbours_after_turn(sizes: tuple[int, ...], size: int, steps: int, device: torch.device) -> Tensor:
    """Return which cells of a window lie beside each other before the cells were ``turned``, (W, size^n, size^n).

    The last window of an axis holds the cells at its end and, behind them, ``steps`` cells from its start (Liu et al.
    2021).
    """
    regions = [
        (torch.arange(side, device=device) >= side - size).long()
        + (torch.arange(side, device=device) >= side - steps).long()
        for side in sizes
    ]
    joined = reduce(lambda so_far, axis: 3 * so_far[..., None] + axis, regions)
    numbers = windows_of(joined[None, ..., None], size)[0, :, :, 0]
    return numbers[:, :, None] == numbers[:, None, :]


def offsets(size: int, axes: int, device: torch.device) -> Tensor:
    """Return the offset of each query from each key in a window along each axis, (size^axes, size^axes, axes)."""
    steps = [torch.arange(size, device=device)] * axes
    places = torch.stack(torch.meshgrid(*steps, indexing="ij"), -1).flatten(0, -2)
    return places[:, None] - places[None, :]
