"""Histograms of oriented gradients of an image (HOG, Dalal & Triggs 2005)."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qkv.spec.signals.images import ORIENTATIONS, hog_cells

_EPS, _CLIP = 1e-5, 0.2


def hog(pixels: np.ndarray) -> np.ndarray:
    """Compute histograms of oriented gradients (F,), fp32, of an image (C, H, W), with at most ``CELLS`` × ``CELLS``
    cells.

    Gradients are central differences, 0 at the border, of the channel in which they are largest. A cell's histogram is
    the mean length of its gradients in each of ``ORIENTATIONS`` ranges of angles from 0 to 180 degrees. Blocks of 2 × 2
    cells, with stride 1, are divided by their L2 norm, clipped at 0.2 and normalised again. If the number of cells does
    not divide the size of the image, pixel i of n belongs to cell ⌊i · cells / n⌋.
    """
    lengths, angles = _gradients(pixels.astype(np.float64))
    rows, columns = (hog_cells(side) for side in lengths.shape)
    bins = np.minimum(angles * ORIENTATIONS / 180, ORIENTATIONS - 1).astype(np.int64)
    places = [np.arange(n) * cells // n for n, cells in zip(lengths.shape, (rows, columns), strict=True)]
    cell = places[0][:, None] * columns + places[1]
    sums = np.bincount((cell * ORIENTATIONS + bins).ravel(), lengths.ravel(), rows * columns * ORIENTATIONS)
    areas = np.bincount(cell.ravel(), minlength=rows * columns)
    means = (sums.reshape(-1, ORIENTATIONS) / areas[:, None]).reshape(rows, columns, ORIENTATIONS)
    sides = min(2, rows), min(2, columns)
    blocks = sliding_window_view(means, sides, (0, 1)).transpose(0, 1, 3, 4, 2)
    flat = _unit(blocks.reshape(*blocks.shape[:2], -1))
    return _unit(np.minimum(flat, _CLIP)).ravel().astype(np.float32)


def _gradients(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (length, angle in degrees from 0 to 180) of the gradient at each pixel, both (H, W)."""
    down, right = np.zeros_like(x), np.zeros_like(x)
    down[:, 1:-1] = x[:, 2:] - x[:, :-2]
    right[:, :, 1:-1] = x[:, :, 2:] - x[:, :, :-2]
    lengths = np.hypot(down, right)
    largest = lengths.argmax(0)[None]
    down, right, lengths = (np.take_along_axis(each, largest, 0)[0] for each in (down, right, lengths))
    return lengths, np.rad2deg(np.arctan2(down, right)) % 180


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).sum(-1, keepdims=True) + _EPS**2)
