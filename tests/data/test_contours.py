"""Contours of shapes: traced, sampled and filled, against geometry known in advance and Pillow's polygons."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from qkv.data.features.contours import SAMPLINGS, filled, length, overlap, sampled, trace

Y, X = np.mgrid[:60, :60].astype(float)
DISC = np.clip(20.5 - np.hypot(X - 30, Y - 28), 0, 1)
"""Disc with a radius of 20 around (30, 28), smooth at its border."""
STAR = Image.new("L", (480, 480))
CORNERS = [(200 if i % 2 else 80, i * math.pi / 5) for i in range(10)]
ImageDraw.Draw(STAR).polygon([(240 + r * math.sin(a), 240 - r * math.cos(a)) for r, a in CORNERS], fill=255)
STAR_FIELD = np.asarray(STAR.resize((96, 96), Image.Resampling.BOX)) / 255


def test_the_contour_of_a_disc_is_a_circle() -> None:
    (circle,) = trace(DISC)
    assert np.abs(np.hypot(*(circle - (30, 28)).T) - 20).max() < 0.1
    assert length(circle) == pytest.approx(2 * math.pi * 20, rel=0.01)
    x, y = circle.T
    area = abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2
    assert area == pytest.approx(math.pi * 400, rel=0.005)


def test_holes_pieces_corners_and_borders_are_contours_that_fill_to_the_mask() -> None:
    ring = (np.hypot(X - 30, Y - 28) < 25) ^ (np.hypot(X - 30, Y - 28) < 10)
    two = (X < 12) | ((X > 40) & (Y > 30))
    touching = np.zeros((6, 6), bool)
    touching[1:3, 1:3] = touching[3:5, 3:5] = True
    noise = np.random.default_rng(0).random((40, 30)) > 0.5
    for mask, count in ((ring, 2), (two, 2), (touching, 2), (np.ones((5, 7), bool), 1), (noise, None)):
        contours = trace(mask.astype(float))
        assert count is None or len(contours) == count
        assert np.array_equal(filled(contours, *mask.shape), mask)
    assert trace(np.zeros((4, 4))) == []


def test_filled_pixels_are_those_around_which_the_polygon_winds() -> None:
    points = [(10.3, 5.2), (50.1, 14.7), (35.6, 52.4), (30.2, 20.9), (8.8, 40.1)]
    found = filled([np.array(points)], 60, 60)
    for y, x in np.ndindex(60, 60):
        angles = [math.atan2(b - y, a - x) for a, b in points]
        turns = sum(math.remainder(b - a, 2 * math.pi) for a, b in zip(angles, angles[1:] + angles[:1], strict=True))
        assert found[y, x] == (abs(turns) > math.pi)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("count", [3, 7, 16, 64])
def test_samples_have_the_number_of_points_and_lie_on_the_contour(sampling: str, count: int) -> None:
    ring = (DISC > 0.5) ^ (np.hypot(X - 30, Y - 28) < 8)
    contours = trace(ring.astype(float))
    found = sampled(contours, count, sampling)
    assert sum(map(len, found)) == count
    assert len(found) == (2 if count >= 6 else 1)
    tiny = sampled(trace(np.ones((1, 2))), count, sampling)
    assert sum(map(len, tiny)) == count
    dense = np.concatenate(contours)
    for point in np.concatenate(found):
        assert np.hypot(*(dense - point).T).min() < 0.75


def test_few_points_are_at_the_corners_of_a_star() -> None:
    """A polygon through all corners loses nothing; equal distances cut every tip off."""
    mask = STAR_FIELD > 0.5
    found = {how: overlap(filled(sampled(trace(STAR_FIELD), 10, how), 96, 96), mask) for how in SAMPLINGS}
    assert found["curvature"] > 0.95 > found["uniform"] + 0.02


def test_points_of_a_circle_are_uniform_in_either_way() -> None:
    (circle,) = trace(DISC)
    for sampling, most in (("uniform", 0.01), ("curvature", 0.6)):
        (points,) = sampled([circle], 16, sampling)
        steps = np.hypot(*(points - np.roll(points, 1, 0)).T)
        assert np.ptp(steps) < most * steps.mean(), sampling


def test_overlap_is_intersection_over_union() -> None:
    first, second = np.zeros((2, 4), bool), np.zeros((2, 4), bool)
    first[:, :3], second[0] = True, True
    assert overlap(first, second) == 3 / 7
    assert overlap(first & False, second & False) == 1
