"""Histograms of oriented gradients against a loop over pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qkv.data.features.gradients import hog
from qkv.spec.signals.images import Images


def by_loop(pixels: np.ndarray) -> list[float]:
    """The definition of skimage.feature.hog with L2-Hys, for 7 × 7 cells, 9 angles and blocks of 2 × 2 cells."""
    channels, height, width = pixels.shape
    side_y, side_x = height // 7, width // 7
    cells = [[[0.0] * 9 for _ in range(7)] for _ in range(7)]
    for y in range(7 * side_y):
        for x in range(7 * side_x):
            best = (-1.0, 0.0)
            for c in range(channels):
                image = pixels[c].astype(float)
                down = image[y + 1, x] - image[y - 1, x] if 0 < y < height - 1 else 0.0
                right = image[y, x + 1] - image[y, x - 1] if 0 < x < width - 1 else 0.0
                length = math.hypot(down, right)
                if length > best[0]:
                    best = (length, math.degrees(math.atan2(down, right)) % 180)
            cells[y // side_y][x // side_x][min(8, int(best[1] // 20))] += best[0] / (side_y * side_x)
    found = []
    for i in range(6):
        for j in range(6):
            block = [v for a in (i, i + 1) for b in (j, j + 1) for v in cells[a][b]]
            for most in (0.2, math.inf):
                norm = math.sqrt(sum(v * v for v in block) + 1e-10)
                block = [min(v / norm, most) for v in block]
            found += block
    return found


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 21, 35)])
def test_histograms_are_those_of_a_loop(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    pixels[:, 4:12] = 255  # equal gradients, and none
    found = hog(pixels)
    np.testing.assert_allclose(found, by_loop(pixels), rtol=1e-5, atol=1e-6)
    assert len(found) == Images(height=shape[1], width=shape[2], channels=shape[0]).num_gradients


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 5), (3, 3, 3), (1, 13, 31), (3, 64, 48)])
def test_images_of_any_size_have_the_number_of_values_that_the_spec_tells(shape: tuple[int, int, int]) -> None:
    found = hog(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    assert len(found) == Images(height=shape[1], width=shape[2], channels=shape[0]).num_gradients
    assert np.isfinite(found).all()


def test_a_brighter_image_has_the_same_histograms() -> None:
    pixels = np.random.default_rng(2).integers(0, 100, (1, 28, 28), dtype=np.uint8)
    np.testing.assert_allclose(hog(pixels + np.uint8(50)), hog(pixels), rtol=1e-5, atol=1e-6)
