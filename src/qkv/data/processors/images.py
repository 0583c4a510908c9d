"""Read images: files, arrays and images in memory, converted to pixels of one size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv.data.features.gradients import hog
from qkv.data.processors.augment import Mixed, augmented
from qkv.data.processors.processor import Processor
from qkv.data.records.columns.profile import profiles
from qkv.data.records.images.clips import holds_clips
from qkv.data.records.images.image_files import GREY, SHOWN, converted, image_name, opened_image, picture_of
from qkv.data.records.images.pictures import as_uri
from qkv.data.records.sounds.cells import holds_sounds
from qkv.data.records.table import Table
from qkv.data.records.values import Unusable, readable
from qkv.layers.signal import Signal
from qkv.spec.models.wide import Gradients, WidePath
from qkv.spec.register import implements
from qkv.spec.signals.images import LARGEST, SIMPLE, Images
from qkv.spec.signals.sizes import SizedImages
from qkv.spec.signals.tiles import ImageTiles
from qkv.system.errors import UserError

_LARGEST = 64
"""Largest height and width that are chosen automatically; the user has to set larger sizes."""
_SAMPLE = 1000
"""Number of training images that determine the size, the mean and the standard deviation."""
_DECODED = 8
"""Minimum side of a JPEG image that is decoded at a reduced size, as a multiple of the processor's larger side."""

_NARROWEST = 200
"""Largest ratio of the sides of an image that keeps its aspect ratio."""


@implements(Images)
class ImageProcessor(Processor):
    """Images: a file name, a data URI, an array (H, W) or (H, W, C), or a Pillow image -> pixels (C, H, W)."""

    example = "picture.png"
    simple = "pixels"
    signals_only = ("mean", "deviation", "augment")
    strongest = Gradients
    spec: Images

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        if Path(source).expanduser().is_dir():
            folder = Path(source).expanduser()
            return not holds_sounds(folder) and not holds_clips(folder)
        rows = table()
        columns = [] if rows is None else profiles(rows).values()
        return any(profile.fits("image") and not profile.is_clips for profile in columns)

    def fitted(self, values: Sequence[Any]) -> Images:
        sample = [values[i] for i in np.unique(np.linspace(0, len(values) - 1, min(len(values), _SAMPLE)).astype(int))]
        spec = self.spec
        if None in (spec.height, spec.width, spec.channels):
            sizes = np.array(readable(_size, sample, "image"))
            height, width = _chosen(sizes[:, :2])
            channels = spec.channels or (1 if sizes[:, 2].all() else 3)
            spec = spec.changed(height=spec.height or height, width=spec.width or width, channels=channels)
        if spec.mean is None:
            pixels = np.stack(readable(ImageProcessor(spec).read, sample, "image")) / 255
            mean, deviation = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clip(min=1e-3)
            spec = spec.changed(mean=tuple(mean.round(4).tolist()), deviation=tuple(deviation.round(4).tolist()))
        return spec

    def encode(self, value: Any) -> np.ndarray:
        image = opened_image(value)
        mode = "L" if self.spec.channels == 1 else "RGB"
        least = _DECODED * max(self.spec.height or 0, self.spec.width or 0)
        image = converted(image, mode, image_name(value), least)
        if not self.spec.rounded:
            return np.stack([_resized(channel.convert("F"), self.spec) for channel in image.split()])
        return _pixels(_resized(image, self.spec))

    def size(self, encoded: np.ndarray) -> int:
        return 1  # all images take the same number of positions

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        assert self.spec.mean is not None
        assert self.spec.deviation is not None
        pixels = torch.from_numpy(np.stack(encoded)).to(torch.float32)
        mean, deviation = (torch.tensor(each)[:, None, None] for each in (self.spec.mean, self.spec.deviation))
        return Signal(pixels.sub_(255 * mean).div_(255 * deviation))

    def restored(self, pixels: torch.Tensor) -> list[np.ndarray]:
        """Convert standardised pixels (B, C, H, W) to images (H, W) or (H, W, 3) of bytes."""
        assert self.spec.mean is not None
        assert self.spec.deviation is not None
        mean, deviation = (torch.tensor(each)[:, None, None] for each in (self.spec.mean, self.spec.deviation))
        values = (pixels.detach().to("cpu", torch.float32) * deviation + mean).mul(255).round().clamp(0, 255)
        images = values.to(torch.uint8).permute(0, 2, 3, 1).numpy()
        return [image[..., 0] if image.shape[2] == 1 else image for image in images]

    def augmented(self, signal: Signal, rng: np.random.Generator) -> tuple[Signal, Mixed | None]:
        pixels, mixed = augmented(self.spec.augment, signal.values, rng)
        return replace(signal, values=pixels), mixed

    def features(self, encoded: np.ndarray) -> np.ndarray:
        pixels = torch.tensor(encoded, dtype=torch.float32)[None]
        side = (min(SIMPLE, encoded.shape[1]), min(SIMPLE, encoded.shape[2]))
        return torch.nn.functional.adaptive_avg_pool2d(pixels, side).flatten().numpy()

    def read_by(self, encoded: np.ndarray, part: WidePath) -> np.ndarray:
        pixels = self.features(encoded)
        return np.concatenate((pixels, hog(encoded))) if part.gradients else pixels

    def picture(self, value: Any) -> str | None:
        return picture_of(value)

    def picture_read(self, encoded: np.ndarray) -> str | None:
        from PIL import Image

        bytes_read = encoded.round().clip(0, 255).astype(np.uint8)
        image = Image.fromarray(bytes_read[0] if len(encoded) == 1 else bytes_read.transpose(1, 2, 0))
        image.thumbnail((SHOWN, SHOWN))
        return as_uri(image)

    def shown(self, value: Any) -> str:
        return image_name(value, "image")


class Tiles(NamedTuple):
    """Encoded image in tiles: pixels (rows, columns, C, H, W) of the tiles, and (C, H, W) of the whole image."""

    tiles: np.ndarray
    whole: np.ndarray


@implements(ImageTiles)
class TileProcessor(ImageProcessor):
    """Tiles of an image, row by row, and after them the whole image; an image of one tile has none but itself."""

    automatic = False
    spec: ImageTiles

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        return False

    def fitted(self, values: Sequence[Any]) -> ImageTiles:
        return self.spec

    def encode(self, value: Any) -> Any:
        spec, side = self.spec, self.spec.height or 1
        method, mode = _resampling(spec), "L" if spec.channels == 1 else "RGB"
        image = converted(opened_image(value), mode, image_name(value), _DECODED * LARGEST)
        image = image.resize(_by_longer(image, spec.longest), method)
        if spec.split:
            image = image.resize(_in_whole_tiles(image, side), method)
        columns, rows = (length // side if spec.split else 0 for length in image.size)
        rows, columns = (0, 0) if rows * columns == 1 else (rows, columns)
        pixels = _pixels(image)[:, : rows * side, : columns * side]
        tiles = pixels.reshape(len(pixels), rows, side, columns, side).transpose(1, 3, 0, 2, 4)
        return Tiles(np.ascontiguousarray(tiles), _pixels(image.resize((side, side), method)))

    def span(self, encoded: Tiles, place: Sequence[int], tokenize: Callable[[str], list[int]]) -> list[int]:
        spec, (rows, columns) = self.spec, encoded.tiles.shape[:2]
        ids = list[int]()
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                ids += [*tokenize(spec.before + spec.place.format(row=row, column=column)), *place]
            if row < rows:
                ids += tokenize("\n")
        begin = "\n\n" if rows else ""
        return [*ids, *tokenize(begin + spec.before + spec.whole), *place, *tokenize(spec.before)]

    def signal(self, encoded: Sequence[Tiles]) -> Signal:
        """Build the signal of all tiles and whole images, in the order of the rows: one row for each."""
        return super().signal(
            [each for image in encoded for each in (*image.tiles.reshape(-1, *image.whole.shape), image.whole)]
        )

    def features(self, encoded: Tiles) -> np.ndarray:
        return super().features(encoded.whole)

    def read_by(self, encoded: Tiles, part: WidePath) -> np.ndarray:
        return super().read_by(encoded.whole, part)

    def picture_read(self, encoded: Tiles) -> str | None:
        return super().picture_read(encoded.whole)


@implements(SizedImages)
class SizedImageProcessor(ImageProcessor):
    """Images that keep their aspect ratio -> pixels (C, H, W), whose sides are multiples of a cell."""

    automatic = False
    spec: SizedImages

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        return False

    def fitted(self, values: Sequence[Any]) -> SizedImages:
        return self.spec

    def encode(self, value: Any) -> np.ndarray:
        mode = "L" if self.spec.channels == 1 else "RGB"
        image = converted(opened_image(value), mode, image_name(value), _DECODED * LARGEST)
        if max(image.size) > _NARROWEST * min(image.size):
            raise Unusable(f"{image_name(value)} has sides of a ratio above {_NARROWEST}")
        return _pixels(image.resize(_in_cells(image, self.spec), _resampling(self.spec)))

    def size(self, encoded: np.ndarray) -> int:
        return encoded.shape[1] // self.spec.patch * (encoded.shape[2] // self.spec.patch)

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        """Build the signal of images of one size. Raises ``UserError`` for several."""
        sizes = dict.fromkeys(f"{image.shape[1]} × {image.shape[2]}" for image in encoded)
        if len(sizes) > 1:
            raise UserError(f"images of {' and '.join(sizes)} pixels are in one call; give images of one aspect ratio")
        return super().signal(encoded)


def _size(value: Any) -> tuple[int, int, bool]:
    """Return (height, width, True if it is greyscale) of a raw image. Raises ``Unusable``."""
    image = opened_image(value)
    return image.height, image.width, image.mode in GREY


def _chosen(sizes: np.ndarray) -> tuple[int, int]:
    """Choose (height, width) for images of these sizes: their size if all are equal, else a square; at most
    ``_LARGEST``.

    Sides of 8 or more are multiples of 4, so that patches fill them.
    """
    equal = bool((sizes == sizes[0]).all())
    height, width = sizes[0] if equal else np.full(2, np.median(sizes.min(1)))
    shrink = min(1.0, _LARGEST / max(height, width))
    chosen = [max(1, round(side * shrink)) for side in (height, width)]
    sides = [side if side < 8 else side - side % 4 for side in chosen]
    return sides[0], sides[1]


def _pixels(image: Any) -> np.ndarray:
    """Return the pixels (C, H, W) of an image."""
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _resampling(spec: Images) -> Any:
    """Return Pillow's filter of a processor."""
    from PIL import Image

    return Image.Resampling[spec.resample.upper()]


def _resized(image: Any, spec: Images) -> Any:
    """Resize and crop an image to the processor's height and width."""
    height, width, method = spec.height, spec.width, _resampling(spec)
    assert height is not None
    assert width is not None
    if spec.resize == "fit":
        return _fitted(image, (width, height), method)
    if spec.resize == "squash":
        before = (spec.resized, spec.resized) if spec.resized else (width, height)
    else:
        before = tuple(map(max, (width, height), _by_shorter(image, spec.resized or max(height, width))))
    if image.size != before:
        image = image.resize(before, method)
    return _cut(image, width, height)


def _by_shorter(image: Any, shorter: int) -> tuple[int, int]:
    """Return the (width, height) of an image whose shorter side becomes ``shorter``; the longer one is rounded down, as
    published image processors do.
    """
    short = min(image.size)
    return int(shorter * image.width / short), int(shorter * image.height / short)


def _by_longer(image: Any, longer: int) -> tuple[int, int]:
    """Return the (width, height) of an image whose longer side becomes ``longer``; the shorter one becomes even."""
    ratio = image.width / image.height
    shorter = int(longer / ratio if image.width >= image.height else longer * ratio)
    shorter = max(1, shorter + shorter % 2)
    return (longer, shorter) if image.width >= image.height else (shorter, longer)


def _in_whole_tiles(image: Any, side: int) -> tuple[int, int]:
    """Return the (width, height) of an image in whole tiles: the longer side is rounded up, then the other one."""
    ratio, longer = image.width / image.height, -(-max(image.size) // side) * side
    shorter = int(longer / ratio if image.width >= image.height else longer * ratio)
    shorter = -(-shorter // side) * side
    return (longer, shorter) if image.width >= image.height else (shorter, longer)


def _in_cells(image: Any, spec: SizedImages) -> tuple[int, int]:
    """Return the (width, height) of an image in whole cells, with ``least`` to ``most`` pixels."""
    cell, pixels = spec.patch * spec.merge, image.width * image.height
    width, height = (round(side / cell) * cell for side in image.size)
    if width * height > spec.most:
        shrink = math.sqrt(pixels / spec.most)
        width, height = (max(cell, math.floor(side / shrink / cell) * cell) for side in image.size)
    elif width * height < spec.least:
        stretch = math.sqrt(spec.least / pixels)
        width, height = (math.ceil(side * stretch / cell) * cell for side in image.size)
    return width, height


def _fitted(image: Any, sides: tuple[int, int], method: Any) -> Any:
    """Return an image of the size ``sides`` with all of ``image`` in its centre, as Donut's processor does."""
    from PIL import Image

    before = _by_shorter(image, min(sides))
    image = image if image.size == before else image.resize(before, method)
    width, height = (min(side, most) for side, most in zip(image.size, sides, strict=True))
    if (width, height) != image.size:
        if image.height > image.width:
            width = int(image.width * height / image.height)
        elif image.width > image.height:
            height = int(image.height * width / image.width)
        image = image.resize((width, height), method)
    whole = Image.new(image.mode, sides)
    whole.paste(image, tuple((side - length) // 2 for side, length in zip(sides, image.size, strict=True)))
    return whole


def _cut(image: Any, width: int, height: int) -> Any:
    """Cut the centre out of an image."""
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image if image.size == (width, height) else image.crop((left, top, left + width, top + height))
