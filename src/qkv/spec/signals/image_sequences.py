"""Specs for images as sequences that a model generates value by value: processors and their front ends."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Placed, Text
from qkv.spec.processors import Processor
from qkv.spec.signals.images import Images


class ImageSequence(Processor):
    """Base class of processors that convert an image to a sequence, in a fixed order of the cells of a grid.

    The first value is a start value: the label of the image, or the same value for all images.
    """

    role = Images.role

    order: Literal["rows", "columns"] = Field(
        default="rows", description="order of the grid cells: row by row, or column by column"
    )
    labelled: bool = Field(
        default=False, description="begin with the label, so that images of a given label can be generated"
    )
    starts: int | None = Field(
        default=None, gt=0, description="number of different start values; default: number of labels of the data"
    )
    grid: Seq[Annotated[int, Field(gt=0)]] | None = Field(
        default=None, min_length=2, max_length=2, description="rows and columns of an image; default: by the data"
    )

    @property
    def reads_label(self) -> bool:
        return self.labelled

    @property
    def places(self) -> int | None:
        """Number of values of an image without the start value; None until fitted."""
        return None if self.grid is None else prod(self.grid)


class ImageCodes(ImageSequence, kind="image_codes"):
    """Codes of images by a trained autoencoder (task ``autoencoding``), as tokens of the task ``next_token``."""

    makes_codes: ClassVar[bool] = True
    pretrained: ClassVar[str] = "run"
    run: str = Field(min_length=1, description="folder of the autoencoder's run")
    codes: int | None = Field(default=None, gt=0, description="number of codes; default: the autoencoder's")
    digest: str | None = Field(
        default=None, description="SHA-256 of the autoencoder's weights; default: the digest of the run's weights"
    )


class CodeTokens(Text, kind="image_codes"):
    """Embeddings of image codes and of the start token or label, with position embeddings; fields as in ``text``."""

    processor: ClassVar[type[Processor] | None] = ImageCodes

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, ImageCodes)
        count = (processor.codes or 0) + (processor.starts or 1)
        if self.vocab_size not in (None, count):
            sentence = f"{self.vocab_size} given, but there are {processor.codes} codes and {processor.starts} starts"
            raise SpecError([Problem(("vocab_size",), f"{sentence}; leave the key out")])
        return self.changed(vocab_size=count)


class ImagePatches(ImageSequence, kind="image_patches"):
    """Patches of images as vectors of P² · C numbers, for the task ``next_patch``."""

    patch: int = Field(default=4, gt=0, description="height and width of a patch in pixels, P")
    images: Images = Field(default=Images(), description="size, channels and standardisation of the images")

    @property
    def features(self) -> int | None:
        """Number of values in a patch; None until fitted."""
        return None if self.images.channels is None else self.patch**2 * self.images.channels

    def problems(self) -> list[Problem]:
        problems = list[Problem]()
        if self.images.augment:
            sentence = "the model would learn to generate augmented images; leave it out"
            problems.append(Problem(("images", "augment"), sentence))
        for name in ("height", "width"):
            size = getattr(self.images, name)
            if size is not None and size % self.patch:
                sentence = f"patches of {self.patch} pixels do not divide {size}; give a multiple"
                problems.append(Problem(("images", name), sentence))
        return problems


class PatchVectors(Placed, kind="image_patches"):
    """Patches and start values, x = W (patch, start) + b, with position embeddings.

    A start value is one-hot, beside a patch of zeros.
    """

    processor: ClassVar[type[Processor] | None] = ImagePatches
    features: int | None = Field(default=None, gt=0, description="number of values in a patch; default: by the data")
    starts: int | None = Field(default=None, gt=0, description="number of start values; default: by the data")

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, ImagePatches)
        sizes = {"features": processor.features, "starts": processor.starts or 1}
        for name, size in sizes.items():
            if getattr(self, name) not in (None, size):
                sentence = f"{getattr(self, name)} given, but the processor has {size}; leave the key out"
                raise SpecError([Problem((name,), sentence)])
        return self.changed(**sizes)

    def unsized(self) -> Self:
        return self.changed(features=None, starts=None)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)
