"""Contours of shapes: trace them from a picture, sample them at few points, and fill them again.

A contour is closed: an array (n, 2) of points (x, y), without the first point repeated at the end. Pixel (row i, column
j) has its centre at x = j, y = i. Several contours of a shape are filled by the even-odd rule, so that holes are
contours too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

Contours = list[np.ndarray]
LEAST = 3
"""Minimum number of points of a contour."""
_STEP = 0.5
"""Maximum distance, in pixels, between the dense points of a contour, some of which are selected as its sample."""


def trace(field: np.ndarray, level: float = 0.5) -> Contours:
    """Trace the contours of the region in which ``field`` (H, W) is above ``level``, longest contour first (marching
    squares).

    Points lie where the field, interpolated between neighbouring pixels, has the value ``level``. Outside of the
    picture the field is 0.
    """
    padded = np.pad(np.asarray(field, np.float64), 1)
    inside = padded > level
    corners = [inside[:-1, :-1], inside[:-1, 1:], inside[1:, 1:], inside[1:, :-1]]
    total = sum(each.astype(int) for each in corners)
    following: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    for i, j in np.argwhere((total > 0) & (total < 4)):
        following.update(_segments(padded, level, int(i), int(j)))
    contours: Contours = []
    while following:
        first, edge = following.popitem()
        edges = [first]
        while edge != first:
            edges.append(edge)
            edge = following.pop(edge)
        points = np.array([_crossing(padded, level, *each) for each in edges]) - 1  # without the border
        contours.append(points[np.any(points != np.roll(points, 1, 0), 1)])
    candidates = [points for points in contours if len(points) >= LEAST]
    return sorted(candidates, key=lambda points: -length(points))


def _segments(
    field: np.ndarray, level: float, i: int, j: int
) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Return the segments of the contour in the square whose corners are the pixels (i, j) to (i + 1, j + 1): pairs of
    edges.

    An edge is (row, column, axis): it starts at that pixel and leads along x (axis 0) or y (axis 1). A segment leads
    from an edge where a walk around the square leaves the region to an edge where the walk enters it.
    """
    corners = ((i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j))
    edges = ((i, j, 0), (i, j + 1, 1), (i + 1, j, 0), (i, j, 1))
    inside = [field[corner] > level for corner in corners]
    leaving = [k for k in range(4) if inside[k] and not inside[(k + 1) % 4]]
    entering = [k for k in range(4) if not inside[k] and inside[(k + 1) % 4]]
    joined = len(leaving) == 2 and sum(field[corner] for corner in corners) / 4 > level
    turn = 1 if joined else -1  # around the pixel outside, or around the one inside
    return [
        (edges[k], edges[next(m % 4 for m in range(k + turn, k + 5 * turn, turn) if m % 4 in entering)])
        for k in leaving
    ]


def _crossing(field: np.ndarray, level: float, i: int, j: int, axis: int) -> tuple[float, float]:
    """Return the point (x, y) on an edge at which the field has the value ``level``."""
    before, after = field[i, j], field[(i, j + 1) if axis == 0 else (i + 1, j)]
    part = (level - before) / (after - before)
    return (j + part, i) if axis == 0 else (j, i + part)


def length(points: np.ndarray) -> float:
    """Compute the length of a closed contour."""
    return float(np.linalg.norm(points - np.roll(points, -1, 0), axis=1).sum())


def filled(contours: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Compute the mask (height, width) of the pixels whose centres lie inside an odd number of the contours."""
    toggles = np.zeros((height, width + 1), bool)
    rows = np.arange(height)
    for points in contours:
        for (x, y), (to_x, to_y) in zip(points, np.roll(points, -1, 0), strict=True):
            crossed = rows[(rows >= min(y, to_y)) & (rows < max(y, to_y))]
            if len(crossed):
                at = x + (crossed - y) / (to_y - y) * (to_x - x)
                columns = np.clip(np.ceil(at), 0, width).astype(int)
                toggles[crossed, columns] ^= True
    return np.logical_xor.accumulate(toggles, axis=1)[:, :width]


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Compute the intersection over union of two masks; 1 if both are empty."""
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else 1.0


def sampled(contours: Sequence[np.ndarray], count: int, sampling: str) -> Contours:
    """Sample the contours at ``count`` points in all, at least ``LEAST`` each; leave out the shortest contours if there
    are too many.

    sampling: a key of ``SAMPLINGS``.
    """
    longest = sorted(contours, key=lambda points: -length(points))[: max(1, count // LEAST)]
    return SAMPLINGS[sampling](longest, count) if longest else []


def _uniform(contours: Sequence[np.ndarray], count: int) -> Contours:
    """Sample points at equal distances along each contour; their numbers are proportional to the lengths of the
    contours.
    """
    lengths = np.array([length(points) for points in contours])
    shared = zip(contours, lengths, _shared(count, lengths), strict=True)
    return [_along(points, np.arange(number) / number * total) for points, total, number in shared]


def _curved(contours: Sequence[np.ndarray], count: int) -> Contours:
    """Sample by repeatedly removing the point whose triangle with its two neighbours is smallest (Visvalingam & Whyatt
    1993).

    The triangle has an area of about κ h³ / 2, with the curvature κ and the distance h to the neighbours. This is the
    area that the shape loses or gains by the removal. The remaining points have about equal κ h³, and so a density
    proportional to |κ|^(1/3).
    """
    step = min(_STEP, sum(map(length, contours)) / (2 * count))
    dense = [_resampled(points, step) for points in contours]
    left = [len(each) for each in dense]
    points, owner = np.concatenate(dense), np.repeat(np.arange(len(dense)), left)
    before, after = np.arange(len(points)) - 1, np.arange(len(points)) + 1
    ends = np.cumsum(left)
    begins = ends - np.array(left)
    before[begins], after[ends - 1] = ends - 1, begins
    alive, total = np.ones(len(points), bool), len(points)

    def area(i: int) -> float:
        (ax, ay), (bx, by) = points[before[i]] - points[i], points[after[i]] - points[i]
        return float(abs(ax * by - ay * bx))

    queue = [(area(i), i) for i in range(total)]
    heapq.heapify(queue)
    current = {i: size for size, i in queue}
    while total > count:
        size, i = heapq.heappop(queue)
        if not alive[i] or current[i] != size or left[owner[i]] <= LEAST:
            continue
        alive[i], total = False, total - 1
        left[owner[i]] -= 1
        after[before[i]], before[after[i]] = after[i], before[i]
        for j in (before[i], after[i]):
            current[j] = max(area(j), size)
            heapq.heappush(queue, (current[j], j))
    return [points[(owner == k) & alive] for k in range(len(dense))]


SAMPLINGS: dict[str, Callable[[Sequence[np.ndarray], int], Contours]] = {
    "curvature": _curved,
    "uniform": _uniform,
}
"""Functions that sample contours: (contours, number of points) -> contours."""


def _resampled(points: np.ndarray, step: float) -> np.ndarray:
    """Resample a contour at equal distances of about ``step``, with at least ``LEAST`` points."""
    count = max(LEAST, round(length(points) / step))
    return _along(points, np.arange(count) / count * length(points))


def _along(points: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the points of a closed contour at the distances ``places`` from its first point."""
    closed = np.concatenate((points, points[:1]))
    steps = np.concatenate(([0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))))
    return np.stack([np.interp(places, steps, closed[:, axis]) for axis in range(2)], 1)


def _shared(count: int, shares: np.ndarray) -> list[int]:
    """Split ``count`` in proportion to ``shares``, at least ``LEAST`` each (largest remainders)."""
    free = count - LEAST * len(shares)
    target = np.maximum(count * shares / shares.sum() - LEAST, 0)
    exact = target * free / max(target.sum(), 1e-12)
    whole = np.floor(exact).astype(int)
    for i in np.argsort(whole - exact)[: free - int(whole.sum())]:
        whole[i] += 1
    return [LEAST + int(each) for each in whole]
