"""Specs for images of any size: processor, and the front end of their patches."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem
from qkv.spec.frontends import Frontend
from qkv.spec.processors import Processor
from qkv.spec.signals.images import LARGEST, Channels, Images, sized_by


class SizedImages(Images, kind="image_sizes"):
    """Images that keep their aspect ratio: sides become multiples of ``patch`` · ``merge`` pixels (Qwen2-VL, 2024).

    An image with fewer than ``least`` or more than ``most`` pixels is resized to that number. Images of one signal must
    have one size.
    """

    channels: Channels | None = 3
    mean: Seq[float] | None = (0.48145466, 0.4578275, 0.40821073)
    deviation: Seq[float] | None = (0.26862954, 0.26130258, 0.27577711)
    patch: int = Field(default=14, gt=0, le=LARGEST, description="height and width of a patch")
    merge: int = Field(default=2, gt=0, le=64, description="patches on a side that are joined to one position")
    least: int = Field(default=56 * 56, gt=0, le=LARGEST**2, description="fewest pixels")
    most: int = Field(default=28 * 28 * 1280, gt=0, le=LARGEST**2, description="most pixels")

    @property
    def is_fitted(self) -> bool:
        return None not in (self.channels, self.mean, self.deviation)

    def problems(self) -> list[Problem]:
        fixed = next((name for name in ("height", "width", "resized") if getattr(self, name) is not None), None)
        if fixed is not None or self.resize != "squash":
            return [Problem((fixed or "resize",), "images keep their aspect ratio; leave it out, or use 'images'")]
        if self.least > self.most or (self.patch * self.merge) ** 2 > self.most:
            return [Problem(("most",), f"{self.most} pixels are too few; give more")]
        return super().problems()


class SizedPatches(Frontend, kind="sized_patches"):
    """Patches of images of any size that they fill: one position per patch, x = W patch, in row-major order.

    For positions that need no size, such as ``rope_2d`` in the blocks (Qwen2-VL, Wang et al. 2024).
    """

    processor: ClassVar[type[Processor] | None] = SizedImages
    grid_axes: ClassVar[int] = 2
    patch: int = Field(default=14, gt=0, le=LARGEST, description="height and width of a patch")
    channels: Channels | None = Field(default=None, description="default: the processor's")
    bias: bool = Field(default=False, description="bias of the map from patches to vectors")

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, Images)
        return sized_by(self, processor, "channels")

    @property
    def cell(self) -> int:
        return self.patch

    def unsized(self) -> Self:
        return self.changed(channels=None)
