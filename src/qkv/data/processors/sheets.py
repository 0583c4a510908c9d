"""Sheets of images: several images side by side in one picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GAP, _WHITE = 1, 255
_LEAST = 56
"""Minimum for the longer side of an image on a sheet, in pixels; smaller images are enlarged by an integer factor."""


def sheet(images: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Join images (H, W) or (H, W, 3) of bytes, all of one size, row by row to one image with ``columns`` columns."""
    height, width = images[0].shape[:2]
    zoom = max(1, -(-_LEAST // max(height, width)))
    rows = -(-len(images) // columns)
    high, wide = height * zoom + _GAP, width * zoom + _GAP
    whole = np.full((rows * high + _GAP, columns * wide + _GAP, *images[0].shape[2:]), _WHITE, np.uint8)
    for number, image in enumerate(images):
        top, left = _GAP + number // columns * high, _GAP + number % columns * wide
        whole[top : top + high - _GAP, left : left + wide - _GAP] = image.repeat(zoom, 0).repeat(zoom, 1)
    return whole
