"""Scatter plots as plain SVG: points in the plane, coloured by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from qkv.report.charts import frame
from qkv.report.charts.frame import text, text_width
from qkv.report.charts.scale import AxisScale, drawable
from qkv.report.markup import Markup, join, number, tag

_SHAPES = ("circle", "square", "triangle", "diamond")
_COMPACT = 480


class Group(NamedTuple):
    """Points (x, y) of one group, such as a class."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class ScatterPlot:
    """Scatter plot of ``groups`` of points. Each group has a colour; from the seventh on, groups reuse the colours with
    another shape.

    The axes have no ticks: only distances have a meaning, as in a projection of vectors.
    """

    title: str
    groups: Sequence[Group]
    width: int = 640
    height: int = 420

    def svg(self, standalone: bool = True) -> str:
        """Return the SVG of the plot.

        ``standalone``: include its style sheet; otherwise, the surrounding page must include ``theme.css``.
        """
        top = 34 + 18 * self._legend_places()[-1][1] if self.groups else 24
        body = [frame.heading(self.title), *self._legend(), *self._points(top + 14)]
        return frame.svg((self.width, self.height), self.title, self._describe(), frame.lines(body), standalone)

    def _repr_svg_(self) -> str:
        """SVG for notebooks."""
        return self.svg()

    def compact(self) -> ScatterPlot | None:
        """Return a smaller variant for narrow screens; None if it is small already."""
        return replace(self, width=360, height=320) if self.width >= _COMPACT else None

    def data(self) -> dict[str, Any]:
        """Return the title and points of the plot as plain data, to embed in the report page."""
        groups = [{"name": name, "points": [list(point) for point in points]} for name, points in self.groups]
        return {"title": self.title, "groups": groups}

    def _describe(self) -> str:
        counts = ", ".join(f"{name} {len(points):,}" for name, points in self.groups)
        return f"Points by group: {counts or 'none'}."

    def _points(self, top: float) -> Iterator[Markup]:
        drawn = [point for group in self.groups for point in group.points if all(map(drawable, point))]
        if not drawn:
            yield text(self.width / 2, self.height / 2, "no values yet", anchor="middle")
            return
        x, y = (AxisScale.over((point[axis] for point in drawn), pad=0.03) for axis in (0, 1))
        for i, group in enumerate(self.groups):
            marks = (
                _mark(i, 6 + x.place(a) * (self.width - 12), self.height - 6 - y.place(b) * (self.height - 6 - top))
                for a, b in group.points
                if drawable(a) and drawable(b)
            )
            yield tag("g", tag("title", group.name), join(marks), opacity=0.75)

    def _legend_places(self) -> list[tuple[float, int, str]]:
        """Lay out the legend: return (x in pixels, row, label) of each entry."""
        x, row, places = 0.0, 0, []
        for group in self.groups:
            label = frame.shortened(group.name, self.width / 2)
            if x and x + text_width(label) + 16 > self.width:
                x, row = 0.0, row + 1
            places.append((x, row, label))
            x += text_width(label) + 30
        return places

    def _legend(self) -> Iterator[Markup]:
        for i, (x, row, label) in enumerate(self._legend_places()):
            yield _mark(i, x + 5, 33.0 + 18 * row)
            yield text(x + 14, 37.0 + 18 * row, label, class_="strong")


def _mark(group: int, x: float, y: float) -> Markup:
    """Draw a point of the group with the index ``group`` at (x, y) in pixels."""
    style = f"point s{group % frame.COLOURS}"
    shape = _SHAPES[group // frame.COLOURS % len(_SHAPES)]
    if shape == "circle":
        return tag("circle", cx=x, cy=y, r=3.5, class_=style)
    corners = {
        "square": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        "triangle": ((0, -4), (4, 3), (-4, 3)),
        "diamond": ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)),
    }[shape]
    path = "L".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in corners)
    return tag("path", d=f"M{path}Z", class_=style)
