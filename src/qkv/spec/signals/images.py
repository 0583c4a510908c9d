"""Specs for images: processor, augmentations, and the front end of patches."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Frontend, Placed
from qkv.spec.processors import Processor, Role

LARGEST = 4096
"""Maximum height and width of the images that a model reads, in pixels."""
SIMPLE = 16
"""Maximum height and width of the downsampled image whose pixels a linear model reads."""
CELLS, ORIENTATIONS = 7, 9
"""Maximum rows and columns of cells, and number of orientation bins, of histograms of oriented gradients (HOG)."""
Side = Annotated[int, Field(gt=0, le=LARGEST)]


Channels = Annotated[int, Field(ge=1, le=3)]


def hog_cells(side: int) -> int:
    """Return the number of HOG cells along a side of ``side`` pixels, each of two pixels or more."""
    return max(1, min(CELLS, side // 2))


def _channel_problems(channels: int | None) -> list[Problem]:
    if channels != 2:
        return []
    return [Problem(("channels",), "2 given, but images have 1 channel (grey) or 3 (RGB)")]


class Augmentation(Part, slot=True):
    """Base class of augmentations: random changes of training images, a function of (seed, step)."""

    mixes: ClassVar[bool] = False
    """True if images and their targets are mixed with others of the batch."""
    mirrors: ClassVar[bool] = False
    """True if left and right may be exchanged."""


class Crop(Augmentation, kind="crop"):
    """Random crop: shift by up to ``padding`` pixels along each axis, with reflection padding."""

    padding: int = Field(default=4, gt=0, le=LARGEST)


class Flip(Augmentation, kind="flip"):
    """Horizontal flip of a fraction ``rate`` of the images."""

    mirrors: ClassVar[bool] = True

    rate: float = Field(default=0.5, ge=0, le=1)


class Erase(Augmentation, kind="erase"):
    """Random erasing (Zhong et al. 2020): in a fraction ``rate`` of the images, a rectangle becomes the mean colour.

    Its area is up to the fraction ``area`` of the image, its aspect ratio 1:3 to 3:1.
    """

    rate: float = Field(default=0.25, ge=0, le=1)
    area: float = Field(default=0.33, gt=0, le=1, description="largest fraction of the image's area")


class Mixing(Augmentation):
    """Base class of augmentations that mix two images and their targets."""

    mixes: ClassVar[bool] = True
    rate: float = Field(default=1.0, ge=0, le=1, description="fraction of the batches that are mixed")


class Mixup(Mixing, kind="mixup"):
    """Mixup (Zhang et al. 2018): λ x_i + (1 - λ) x_j, and the loss likewise; λ from Beta(alpha, alpha), per batch."""

    alpha: float = Field(default=0.2, gt=0)


class CutMix(Mixing, kind="cutmix"):
    """CutMix (Yun et al. 2019): a rectangle is taken from another image, and losses are weighted by area.

    λ is drawn from Beta(alpha, alpha).
    """

    alpha: float = Field(default=1.0, gt=0)


F = TypeVar("F", bound=Frontend)


class Pixels(Processor):
    """Base class of processors of images and videos: (pixel / 255 - mean) / deviation for each channel.

    ``squash`` resizes to height × width; ``crop`` resizes the shorter side, keeping the aspect ratio, and crops the
    centre; ``fit`` resizes the shorter side to the smaller of height and width, shrinks what is larger, keeping the
    aspect ratio, and puts it in the centre of a black image.
    """

    height: Side | None = Field(default=None, description="pixels; default: by the sizes of the training images")
    width: Side | None = Field(default=None, description="pixels; default: by the sizes of the training images")
    channels: Channels | None = Field(default=None, description="1: grey, 3: RGB; default: 1 if all are grey")
    mean: Seq[float] | None = Field(
        default=None, description="mean of each channel, from 0 to 1; default: of the training set"
    )
    deviation: Seq[Annotated[float, Field(gt=0)]] | None = Field(
        default=None, description="standard deviation of each channel, in the same unit; default: of the training set"
    )
    resize: Literal["squash", "crop", "fit"] = "squash"
    resized: int | None = Field(
        default=None, gt=0, le=LARGEST, description="size before a centre crop, in pixels; default: the height"
    )
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    rounded: bool = Field(default=True, description="round resized pixels to integers; false: keep fractions")

    @property
    def is_fitted(self) -> bool:
        """True if all fields that the training set determines are set."""
        return None not in (self.height, self.width, self.channels, self.mean, self.deviation)

    @property
    def num_pixels(self) -> int | None:
        """Number of values of an encoded input; None until fitted."""
        if self.height is None or self.width is None or self.channels is None:
            return None
        return self.height * self.width * self.channels

    def following(self, start: Processor) -> Self:
        """Return a copy that takes settings left at their defaults from ``start``.

        For images of another size, the size before a centre crop changes in proportion.
        """
        assert isinstance(start, Pixels)
        clone, fields = self, type(self).model_fields
        sides = self.height or start.height, self.width or start.width
        if self.resized is None and start.resized and start.height and start.width and None not in sides:
            grown = max((new or 0) / old for new, old in zip(sides, (start.height, start.width), strict=True))
            clone = self.changed(height=sides[0], width=sides[1], resized=round(start.resized * grown))
        return clone.changed(
            **{name: getattr(start, name) for name in fields if getattr(clone, name) == fields[name].default}
        )

    @property
    def num_simple(self) -> int | None:
        if self.height is None or self.width is None or self.channels is None:
            return None
        return min(SIMPLE, self.height) * min(SIMPLE, self.width) * self.channels

    @property
    def num_gradients(self) -> int | None:
        """Number of values of an image's histograms of oriented gradients; None until fitted."""
        if self.height is None or self.width is None:
            return None
        count = ORIENTATIONS
        for cells in map(hog_cells, (self.height, self.width)):
            count *= max(1, cells - 1) * min(2, cells)
        return count

    def problems(self) -> list[Problem]:
        problems = _channel_problems(self.channels)
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if values is not None and self.channels is not None and len(values) != self.channels:
                sentence = f"{len(values)} values are given for {self.channels} channels; give one for each"
                problems.append(Problem((name,), sentence))
        if (self.mean is None) != (self.deviation is None):
            problems.append(Problem(("mean",), "give both mean and deviation, or neither"))
        if self.resized is not None and self.height and self.width and self.resized < max(self.height, self.width):
            sentence = f"{self.resized} pixels are too few for a crop of {self.height} × {self.width}"
            problems.append(Problem(("resized",), sentence))
        return problems


class Images(Pixels, kind="images"):
    """Images of a fixed size, (pixel / 255 - mean) / deviation for each channel.

    ``squash`` resizes to height × width; ``crop`` resizes the shorter side, keeping the aspect ratio, and crops the
    centre. Images are rotated by their EXIF data; of animations, the first frame is read; transparent pixels are white.
    """

    role = Role(
        "image", "image", ("image", "file", "filename", "path", "picture", "photo", "img", "url"), values="image files"
    )

    of_images = True
    augment: Seq[Augmentation] = Field(default=(), description="random changes of training images")

    @property
    def varies(self) -> bool:
        return bool(self.augment)

    def of_pairs(self) -> Self:
        """Return a copy without changes after which a text about the image may be wrong, such as "left"."""
        return self.changed(augment=tuple(each for each in self.augment if not (each.mirrors or each.mixes)))


def sized_by(frontend: F, processor: Processor, *names: str) -> F:
    """Return a copy of a front end with a processor's sizes ``names``. Raises ``SpecError`` if its sizes differ."""
    sizes = {name: getattr(processor, name) for name in names}
    wrong = [name for name, size in sizes.items() if getattr(frontend, name) not in (None, size)]
    if wrong:
        name = wrong[0]
        sentence = f"{getattr(frontend, name)} given, but the processor has {sizes[name]}; leave it out"
        raise SpecError([Problem((name,), sentence)])
    return frontend.changed(**sizes)


class Patches(Placed, kind="patches"):
    """Image patches: one position per patch, x = W patch + b (ViT, Dosovitskiy et al. 2021).

    With a patch size of 1, each pixel is a position. ``stem``: channels of convolutions (3 × 3, batch norm, ReLU, max
    pooling by 2) before the patches (Compact Transformers, Hassani et al. 2021). Patches are in row-major order, after
    the class token and other learned positions if there are any. ``registers`` are learned positions without a position
    vector, directly before the patches (Darcet et al. 2024). With a ``stride`` below their size, patches overlap
    (SegFormer, Xie et al. 2021).
    """

    processor: ClassVar[type[Processor] | None] = Images
    grid_axes: ClassVar[int] = 2
    patch: int = Field(default=4, gt=0, le=LARGEST, description="height and width of a patch, after the stem")
    stem: Seq[Annotated[int, Field(gt=0, le=LARGEST)]] = Field(
        default=(), description="channels of convolutions before the patches, each of which halves height and width"
    )
    stride: int | None = Field(
        default=None, gt=0, le=LARGEST, description="pixels from a patch to the next; default: its size, no overlap"
    )
    padding: int = Field(default=0, ge=0, le=LARGEST, description="rows and columns of zeros around the pixels")
    bias: bool = Field(default=True, description="bias of the map from patches to vectors (CLIP: none)")
    class_token: bool = Field(default=False, description="learned first position, for the pooling 'first'")
    extra_tokens: int = Field(
        default=0, ge=0, le=1000, description="learned positions before the patches, after the class token (DeiT: one)"
    )
    height: Side | None = Field(default=None, description="pixels; default: the processor's")
    width: Side | None = Field(default=None, description="pixels; default: the processor's")
    channels: Channels | None = Field(default=None, description="default: the processor's")
    registers: int = Field(
        default=0, ge=0, le=1000, description="learned positions before the patches that have no position vector"
    )

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, Images)
        return sized_by(self, processor, "height", "width", "channels")

    @property
    def grid(self) -> tuple[int, int] | None:
        if self.height is None or self.width is None:
            return None
        rows, columns = self.height, self.width
        for _ in self.stem:
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        step, border = self.stride or self.patch, 2 * self.padding - self.patch
        return max(0, (rows + border) // step + 1), max(0, (columns + border) // step + 1)

    @property
    def covered(self) -> tuple[float, ...]:
        if self.grid is None or self.height is None or self.width is None:
            return super().covered
        sides = zip(self.grid, (self.height, self.width), strict=True)
        return tuple(min(1.0, self.cell * count / side) for count, side in sides)

    @property
    def cell(self) -> int:
        return (self.stride or self.patch) * 2 ** len(self.stem)

    @property
    def leading(self) -> int:
        """Number of positions before the patches, such as a class token."""
        return self.leading_placed + self.registers

    @property
    def leading_placed(self) -> int:
        """Number of positions before the patches that have a position vector."""
        return self.class_token + self.extra_tokens

    @property
    def num_placed(self) -> int | None:
        return None if self.grid is None else prod(self.grid) + self.leading_placed

    @property
    def num_positions(self) -> int | None:
        return None if self.grid is None else prod(self.grid) + self.leading

    def resized(self, height: int, width: int) -> Self:
        """Return a copy for images of another size, with learned position vectors resampled from the current grid."""
        positions = self.positions
        if self.grid is not None and (height, width) != (self.height, self.width):
            positions = positions.resampled_from(self.grid, self.leading_placed)
        return self.changed(height=height, width=width, positions=positions)

    def limit(self, context_length: int) -> int | None:
        return self.positions.limit(self.num_positions or context_length)

    @property
    def limited_by(self) -> str:
        return "the size of the images"

    def unsized(self) -> Self:
        return self.changed(height=None, width=None, channels=None)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0, positions=self.positions.canonical(self.grid))

    def problems(self) -> list[Problem]:
        problems = [*super().problems(), *_channel_problems(self.channels)]
        if self.grid is not None and 0 in self.grid:
            sentence = f"patches of {self.patch} pixels are larger than images of {self.height} × {self.width}"
            problems.append(
                Problem(("patch",), f"{sentence}{' after the stem' if self.stem else ''}; give a smaller one")
            )
        leading = self.leading_placed
        number = getattr(self.positions, "leading", leading) if self.positions.leads else leading
        if number != leading:
            sentence = f"{number} given, but {leading} positions with a vector precede the patches"
            problems.append(Problem(("positions", "leading"), f"{sentence}; give their number"))
        return problems
