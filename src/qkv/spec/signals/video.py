"""Specs for video: processor, and front end of tubelets."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Self

from pydantic import Field

from qkv.spec.errors import Problem
from qkv.spec.frontends import Placed
from qkv.spec.processors import Processor, Role
from qkv.spec.signals.images import LARGEST, Channels, Pixels, Side, sized_by

MOST_FRAMES = 1024
"""Upper bound of the number of frames that a model reads."""


class Video(Pixels, kind="video"):
    """Clips of a fixed number of frames, evenly spaced, each of a fixed size; (pixel / 255 - mean) / deviation."""

    role = Role(
        "image",
        "image",
        ("image", "clip", "video", "file", "filename", "path", "animation"),
        clips=True,
        values="image files",
    )

    frames: int | None = Field(
        default=None, gt=0, le=MOST_FRAMES, description="default: the median of the training clips, at most 16"
    )

    @property
    def is_fitted(self) -> bool:
        return super().is_fitted and self.frames is not None

    @property
    def num_pixels(self) -> int | None:
        frame = super().num_pixels
        return None if frame is None or self.frames is None else self.frames * frame


class Tubelets(Placed, kind="tubelets"):
    """Tubelets of a clip: one position per block of the clip, x = W block + b (ViViT, Arnab et al. 2021).

    A block has ``depth`` frames × ``patch`` × ``patch`` pixels. Positions are in the order of frames, rows and columns.
    Frames and pixels at the end that do not fill a block are dropped.
    """

    processor: ClassVar[type[Processor] | None] = Video
    grid_axes: ClassVar[int] = 3
    depth: int = Field(default=2, gt=0, le=MOST_FRAMES, description="frames of a tubelet")
    patch: int = Field(default=4, gt=0, le=LARGEST, description="height and width of a tubelet, in pixels")
    frames: int | None = Field(default=None, gt=0, le=MOST_FRAMES, description="default: the processor's")
    height: Side | None = Field(default=None, description="pixels; default: the processor's")
    width: Side | None = Field(default=None, description="pixels; default: the processor's")
    channels: Channels | None = Field(default=None, description="default: the processor's")

    def fitted(self, processor: Processor) -> Self:
        return sized_by(self, processor, "frames", "height", "width", "channels")

    @property
    def grid(self) -> tuple[int, int, int] | None:
        if self.frames is None or self.height is None or self.width is None:
            return None
        return self.frames // self.depth, self.height // self.patch, self.width // self.patch

    @property
    def covered(self) -> tuple[float, ...]:
        if self.grid is None or self.frames is None or self.height is None or self.width is None:
            return super().covered
        blocks, sizes = (self.depth, self.patch, self.patch), (self.frames, self.height, self.width)
        return tuple(count * block / size for count, block, size in zip(self.grid, blocks, sizes, strict=True))

    @property
    def num_positions(self) -> int | None:
        return None if self.grid is None else prod(self.grid)

    def limit(self, context_length: int) -> int | None:
        return self.positions.limit(self.num_positions or context_length)

    @property
    def limited_by(self) -> str:
        return "the size of the clips"

    def unsized(self) -> Self:
        return self.changed(frames=None, height=None, width=None, channels=None)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0, positions=self.positions.canonical(self.grid))

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.grid is not None and 0 in self.grid:
            sizes = f"{self.frames} frames of {self.height} × {self.width} pixels"
            name = "patch" if self.grid[0] else "depth"
            sentence = f"tubelets of {self.depth} frames and {self.patch} pixels are larger than clips of {sizes}"
            problems = [*problems, Problem((name,), f"{sentence}; give a smaller one")]
        return problems
