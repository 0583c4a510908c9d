"""Reading of images: files, arrays and images in memory, converted to pixels of one size."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.data.processors.augment import Mixed, augmented
from qkv.data.processors.processor import Processor
from qkv.data.records.model import Role
from qkv.data.records.pictures import URI, as_uri
from qkv.data.records.profile import profiles
from qkv.data.records.table import Table
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.errors import UserError
from qkv.spec.register import implements
from qkv.spec.signals.images import SIMPLE, Images

MOST_PIXELS = 100_000_000
"""Maximum number of pixels of an image file, so that a small file cannot fill the memory."""
_LARGEST = 64
"""Largest height and width that are chosen; larger ones are for the user to name."""
_SAMPLE = 1000
"""Number of training images by which size, mean and deviation are chosen."""
_SHOWN = 96
"""Largest height and width of images in reports."""
_DRAFT, _DECODED = 1024, 8
"""Least side of a JPEG file that is decoded at a reduced size: in pixels, and as a multiple of the processor's."""
_DEEP = ("I;16", "I;16B", "I;16L", "I", "F")
"""Modes of Pillow with more than 8 bits per pixel."""
_GREY = ("1", "L", "LA", *_DEEP)


@implements(Images)
class ImageProcessor(Processor):
    """Images: a file name, a data URI, an array (H, W) or (H, W, C), or a Pillow image -> pixels (C, H, W)."""

    role = Role("image", "image", ("image", "file", "filename", "path", "picture", "photo", "img", "url"))
    example = "picture.png"
    simple = "pixels"
    spec: Images

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        if Path(source).expanduser().is_dir():
            return True
        found = table()
        return found is not None and any(profile.fits("image") for profile in profiles(found).values())

    def fitted(self, values: Sequence[Any]) -> Images:
        sample = [values[i] for i in np.unique(np.linspace(0, len(values) - 1, min(len(values), _SAMPLE)).astype(int))]
        found = self.spec
        if None in (found.height, found.width, found.channels):
            sizes, grey = _sizes(sample)
            height, width = _chosen(sizes)
            channels = found.channels or (1 if grey else 3)
            found = found.changed(height=found.height or height, width=found.width or width, channels=channels)
        if found.mean is None:
            pixels = np.stack([*_readable(ImageProcessor(found), sample)]) / 255
            mean, deviation = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clip(min=1e-3)
            found = found.changed(mean=tuple(mean.round(4).tolist()), deviation=tuple(deviation.round(4).tolist()))
        return found

    def encode(self, value: Any) -> np.ndarray:
        image = _image(value)
        mode = "L" if self.spec.channels == 1 else "RGB"
        least = _DECODED * max(self.spec.height or 0, self.spec.width or 0)
        image = _resized(_converted(image, mode, _name(value), least), self.spec)
        pixels = np.array(image)
        return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def size(self, encoded: np.ndarray) -> int:
        return 1  # all images take the same number of positions

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        assert self.spec.mean is not None
        assert self.spec.deviation is not None
        pixels = torch.from_numpy(np.stack(encoded)).to(torch.float32)
        mean, deviation = (torch.tensor(each)[:, None, None] for each in (self.spec.mean, self.spec.deviation))
        return Signal(pixels.sub_(255 * mean).div_(255 * deviation))

    def augmented(self, signal: Signal, rng: np.random.Generator) -> tuple[Signal, Mixed | None]:
        pixels, mixed = augmented(self.spec.augment, signal.values, rng)
        return replace(signal, values=pixels), mixed

    def features(self, encoded: np.ndarray) -> np.ndarray:
        pixels = torch.tensor(encoded, dtype=torch.float32)[None]
        side = (min(SIMPLE, encoded.shape[1]), min(SIMPLE, encoded.shape[2]))
        return torch.nn.functional.adaptive_avg_pool2d(pixels, side).flatten().numpy()

    def picture(self, value: Any) -> str | None:
        try:
            image = _converted(_image(value), "RGB", _name(value))
        except Unusable:
            return None
        image.thumbnail((_SHOWN, _SHOWN))
        return as_uri(image)

    def checked(self, value: Any) -> Any:
        _converted(_image(value), "L", _name(value))
        return value

    def shown(self, value: Any) -> str:
        if isinstance(value, str) and not value.startswith(URI):
            return value
        return "image"


def _readable(processor: ImageProcessor, values: Sequence[Any]) -> list[np.ndarray]:
    """Encoded values that can be read. Raises ``UserError`` if there is none."""
    found, reason = list[np.ndarray](), ""
    for value in values:
        try:
            found.append(processor.encode(value))
        except Unusable as error:
            reason = reason or str(error)
    if not found:
        raise UserError(f"no image can be read: {reason}")
    return found


def _sizes(values: Sequence[Any]) -> tuple[np.ndarray, bool]:
    """((height, width) of each readable image, True if all are grey). Raises ``UserError`` if none is readable."""
    sizes, grey, reason = list[tuple[int, int]](), True, ""
    for value in values:
        try:
            image = _image(value)
            sizes.append((image.height, image.width))
            grey = grey and image.mode in _GREY
        except Unusable as error:
            reason = reason or str(error)
    if not sizes:
        raise UserError(f"no image can be read: {reason}")
    return np.array(sizes), grey


def _chosen(sizes: np.ndarray) -> tuple[int, int]:
    """(height, width) for images of these sizes: theirs if they are equal, else a square; at most ``_LARGEST``.

    Multiples of 4, so that patches fill them, unless images are smaller.
    """
    equal = bool((sizes == sizes[0]).all())
    height, width = sizes[0] if equal else np.full(2, np.median(sizes.min(1)))
    shrink = min(1.0, _LARGEST / max(height, width))
    chosen = [max(1, round(side * shrink)) for side in (height, width)]
    found = [side if side < 8 else side - side % 4 for side in chosen]
    return found[0], found[1]


def _image(value: Any) -> Any:
    """Pillow image of a raw value; files are opened but not decoded. Raises ``Unusable``."""
    from PIL import Image, UnidentifiedImageError

    name = _name(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = _opened(value)
    except Image.DecompressionBombError:
        raise Unusable(f"{name} has more than {MOST_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise Unusable(f"{name} is not an image") from None
    except FileNotFoundError:
        raise Unusable(f"there is no file {name}") from None
    except (OSError, ValueError, TypeError, SyntaxError, EOFError) as error:
        raise Unusable(f"{name} cannot be read: {_reason(error)}") from None
    if image.width * image.height > MOST_PIXELS:
        raise Unusable(f"{name} has {image.width:,} × {image.height:,} pixels, more than {MOST_PIXELS:,}")
    return image


def _name(value: Any) -> str:
    """Name of a file, or "the image", for messages."""
    return value if isinstance(value, str) and not value.startswith(URI) else "the image"


def _opened(value: Any) -> Any:
    from PIL import Image

    if isinstance(value, str) and value.startswith(URI):
        return Image.open(io.BytesIO(base64.b64decode(value.partition(",")[2], validate=True)))
    if isinstance(value, (str, Path)):
        path = Path(value).expanduser()
        if path.is_dir():
            raise ValueError("it is a directory")
        return Image.open(io.BytesIO(path.read_bytes()))  # a file that stays open would be left to the collector
    if isinstance(value, bytes):
        return Image.open(io.BytesIO(value))
    if isinstance(value, Image.Image):
        return value
    return Image.fromarray(_array(value))


def _array(value: Any) -> np.ndarray:
    """Pixels (H, W) or (H, W, C) as uint8; numbers from 0 to 1 are scaled. Raises ``ValueError``."""
    pixels = np.asarray(value)
    if pixels.dtype == object or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)):
        raise ValueError(f"its shape is {pixels.shape}, not (height, width) or (height, width, 1, 3 or 4 channels)")
    if pixels.size == 0 or not np.isfinite(pixels).all():
        raise ValueError("it has no pixels" if pixels.size == 0 else "not all pixels are finite")
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 255:
        raise ValueError(f"its pixels are from {low:g} to {high:g}, not from 0 to 255, or from 0 to 1")
    fractions = pixels.dtype.kind == "f" and high <= 1
    return (255 * pixels if fractions else pixels).round().astype(np.uint8)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0].lower()


def _converted(image: Any, mode: str, name: str, least: int = 0) -> Any:
    """Decoded image in ``mode``, rotated by its EXIF data, on white. Large JPEG files are decoded at a half, quarter or
    eighth of their size, but with at least ``least`` pixels on each side. Raises ``Unusable`` for a damaged file.
    """
    from PIL import Image, ImageOps

    try:
        image.seek(0)
        image.draft("RGB", (max(_DRAFT, least),) * 2)
        image = ImageOps.exif_transpose(image)
        if image.mode in _DEEP:
            pixels = np.asarray(image, np.float64)
            depth = 65535 if image.mode != "F" and pixels.max(initial=0) > 255 else max(pixels.max(initial=0), 1)
            image = Image.fromarray((pixels.clip(0) * (255 / depth)).clip(max=255).round().astype(np.uint8))
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert(mode)
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, MemoryError) as error:
        raise Unusable(f"{name} cannot be decoded: {_reason(error)}") from None


def _resized(image: Any, spec: Images) -> Any:
    """Image of the processor's height and width."""
    from PIL import Image

    height, width = spec.height, spec.width
    assert height is not None
    assert width is not None
    filters = Image.Resampling
    how = {"nearest": filters.NEAREST, "bilinear": filters.BILINEAR, "bicubic": filters.BICUBIC}
    method = how.get(spec.resample, filters.LANCZOS)
    if spec.resize == "squash":
        before = (spec.resized, spec.resized) if spec.resized else (width, height)
    else:
        shorter, short = spec.resized or max(height, width), min(image.size)
        # Rounded down, as published image processors do.
        sides = zip((width, height), image.size, strict=True)
        before = tuple(max(side, int(shorter * size / short)) for side, size in sides)
    if image.size != before:
        image = image.resize(before, method)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image if image.size == (width, height) else image.crop((left, top, left + width, top + height))
