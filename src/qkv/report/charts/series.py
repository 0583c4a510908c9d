"""Prepare series of points for drawing: smooth, split at gaps, downsample without losing peaks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from qkv.report.charts.scale import drawable


@dataclass(frozen=True)
class Line:
    """Line of a chart: values ``y`` at positions ``x``, of equal length.

    ``None`` means not measured and is skipped; NaN and infinities are drawn as gaps. ``smooth`` draws a running mean in
    front of the faint raw values; ``points`` marks each value with a dot.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    smooth: bool = False
    points: bool = False

    def measured(self) -> list[tuple[float, float]]:
        """Return the measured points (x, y), sorted by x. Raises ``ValueError`` if x and y have unequal lengths."""
        if len(self.x) != len(self.y):
            raise ValueError(f"the line {self.name!r} has {len(self.x)} x values and {len(self.y)} y values")
        pairs = [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None and drawable(x)]
        return sorted(pairs, key=lambda pair: pair[0])


@dataclass(frozen=True)
class Trace:
    """Downsampled points (x, y) of one line, to be drawn. A smoothed line has two traces: its raw values (``faint``)
    and its mean. ``colour``: index of the line's colour; ``marked``: draw a dot at each point.
    """

    name: str
    colour: int
    points: list[tuple[float, float]]
    faint: bool = False
    marked: bool = False


def traces(line: Line, colour: int, limit: int, x_log: bool = False) -> list[Trace]:
    """Build the traces of ``line``, each of at most about ``limit`` points; ``colour``: index of the line's colour."""
    pairs = [(x, y) for x, y in line.measured() if drawable(x, x_log)]
    raw = downsample(pairs, limit, x_log)
    if not line.smooth or len(pairs) < 8:
        return [Trace(line.name, colour, raw, marked=line.points)]
    mean = smoothed(pairs, limit // 4, x_log)
    return [Trace(line.name, colour, raw, faint=True), Trace(f"{line.name}, mean", colour, mean, marked=line.points)]


def smoothed(
    pairs: list[tuple[float, float]], limit: int, x_log: bool = False, share: float = 0.03
) -> list[tuple[float, float]]:
    """Smooth a series (x, y) by a running mean at about ``limit`` positions.

    The window spans the fraction ``share`` of the series, less at the start and at gaps. It is centred, so that drops
    of the loss are not delayed; at the end it only includes earlier values.
    """
    half = max(1, round(len(pairs) * share / 2))
    positions = sorted({bucket[0] for bucket in _buckets(pairs, limit, x_log)} | {len(pairs) - 1})
    out: list[tuple[float, float]] = []
    start = 0
    for fits, run in runs(pairs):
        end, values = start + len(run), [y for _, y in run]
        places = {
            0,
            len(run) - 1,
            *(i - start for i in positions[bisect_left(positions, start) : bisect_left(positions, end)]),
        }
        out += [(run[i][0], _mean_around(values, i, half)) for i in sorted(places)] if fits else run[:1]
        start = end
    return downsample(out, limit, x_log)


def _mean_around(values: list[float], i: int, half: int) -> float:
    reach = min(half, i)
    window = values[i - reach : i + reach + 1]
    return math.fsum(window) / len(window)


def downsample(pairs: list[tuple[float, float]], limit: int, x_log: bool = False) -> list[tuple[float, float]]:
    """Select at most ``limit`` of the points, in order.

    These are the first, the last, and in each interval of the x axis the minimum, the maximum and the ends of gaps.
    """
    if len(pairs) <= limit:
        return pairs
    per_bucket = 2 if all(drawable(y) for _, y in pairs) else 4
    indices = {0, len(pairs) - 1}
    for bucket in _buckets(pairs, max(1, (limit - 2) // per_bucket), x_log):
        indices |= _extremes(bucket, pairs)
    return [pairs[i] for i in sorted(indices)]


def _buckets(pairs: list[tuple[float, float]], count: int, x_log: bool) -> Iterator[list[int]]:
    """Yield the indices of the points in each of ``count`` equal intervals of the x axis; skip empty intervals."""
    place = math.log if x_log else float
    places = [place(x) for x, _ in pairs]
    scale = count / (places[-1] - places[0]) if places and places[-1] > places[0] else 0.0
    for _, bucket in groupby(range(len(pairs)), key=lambda i: min(count - 1, int((places[i] - places[0]) * scale))):
        yield list(bucket)


def _extremes(bucket: list[int], pairs: list[tuple[float, float]]) -> set[int]:
    finite = [i for i in bucket if drawable(pairs[i][1])]
    gaps = [i for i in bucket if not drawable(pairs[i][1])]
    indices = {min(finite, key=lambda i: pairs[i][1]), max(finite, key=lambda i: pairs[i][1])} if finite else set()
    return indices | {*gaps[:1], *gaps[-1:]}


def runs(points: list[tuple[float, float]], log: bool = False) -> Iterator[tuple[bool, list[tuple[float, float]]]]:
    """Split ``points`` into maximal runs of points that can be drawn on the y axis (True) or cannot (False)."""
    for fits, run in groupby(points, key=lambda point: drawable(point[1], log)):
        yield fits, list(run)
