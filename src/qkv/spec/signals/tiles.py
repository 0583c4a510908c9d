"""Spec of the processor that cuts large images into tiles."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem
from qkv.spec.signals.images import Images, Side


class ImageTiles(Images, kind="image_tiles"):
    """Images cut into tiles of height × width pixels, each of which a tower reads, and the whole image as the last one.

    The longer side becomes ``longest`` pixels, and each side is rounded up to whole tiles. Words between the tiles say
    where each stands (Idefics 3, Laurençon et al. 2024). Without ``split`` there is only the whole image.
    """

    height: Side | None = 512
    width: Side | None = 512
    channels: int | None = Field(default=3, ge=1, le=3, description="1: grey, 3: RGB")
    mean: Seq[float] | None = (0.5, 0.5, 0.5)
    deviation: Seq[float] | None = (0.5, 0.5, 0.5)
    longest: Side = Field(default=2048, description="pixels of the longer side before it is cut")
    split: bool = Field(default=True, description="cut into tiles; false: the whole image alone")
    before: str = Field(default="<fake_token_around_image>", description="text before each tile, and after the last")
    place: str = Field(default="<row_{row}_col_{column}>", description="text that says where a tile stands")
    whole: str = Field(default="<global-img>", description="text before the whole image")

    def problems(self) -> list[Problem]:
        if self.is_fitted and self.height == self.width and self.resized is None and self.resize == "squash":
            return super().problems()
        sentence = "tiles are squares, resized without a crop, with a mean and a deviation"
        return [Problem((), f"{sentence}; give height and width alike, and leave resize and resized out")]
