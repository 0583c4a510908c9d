"""Specs for contours of shapes: processor and front end."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Placed
from qkv.spec.processors import Processor, Role
from qkv.spec.signals.images import SIMPLE, Side

COLUMNS = 3
"""Number of values of an encoded point: x, y, and 1 where a contour begins."""
MOST_POINTS = 4096
"""Upper bound of the number of points of a contour."""


class Contours(Processor, kind="contours"):
    """Contours of the shape in a picture, as a sequence of ``points`` points (x, y) (VistaLLM, Pramanick et al. 2024).

    The shape consists of the pixels that are not transparent. In a picture without transparent pixels, it consists of
    the pixels that differ from the picture's border by more than half of the largest difference. Points are spread over
    all contours, holes included, in one of two ways. ``curvature``: dense where contours are curved, by removing
    repeatedly the point whose triangle with its two neighbours is smallest (Visvalingam & Whyatt 1993). ``uniform``: at
    equal distances. Coordinates are relative to the centre of the shape's bounding box, in units of half its longer
    side.
    """

    role = Role(
        "image", "image", ("image", "file", "filename", "path", "picture", "mask", "shape"), values="image files"
    )

    points: int = Field(default=64, ge=3, le=MOST_POINTS)
    sampling: Literal["curvature", "uniform"] = "curvature"
    side: Side = Field(default=128, description="longer side at which contours are traced, in pixels")

    @property
    def num_simple(self) -> int:
        return SIMPLE * SIMPLE


class ContourPoints(Placed, kind="contour_points"):
    """Points of contours: one position per point, x = W (x, y, first) + b.

    ``first`` is 1 where a contour begins, else 0.
    """

    processor: ClassVar[type[Processor] | None] = Contours
    points: int | None = Field(default=None, gt=0, le=MOST_POINTS, description="default: the processor's")

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, Contours)
        if self.points not in (None, processor.points):
            sentence = f"{self.points} given, but the processor has {processor.points} points; leave it out"
            raise SpecError([Problem(("points",), sentence)])
        return self.changed(points=processor.points)

    @property
    def num_positions(self) -> int | None:
        return self.points

    def limit(self, context_length: int) -> int | None:
        return self.positions.limit(self.points or context_length)

    @property
    def limited_by(self) -> str:
        return "the number of points"

    def unsized(self) -> Self:
        return self.changed(points=None)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)
