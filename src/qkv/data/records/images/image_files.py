"""Open image files, arrays and images in memory as Pillow images."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.reading import current
from qkv.data.records.images.pictures import FORMATS, URI, as_uri
from qkv.data.records.values import Unusable

MOST_PIXELS = 100_000_000
"""Maximum number of pixels of an image file, so that a small file cannot fill the memory."""
SHOWN = 96
"""Largest height and width of pictures in reports."""
_DRAFT = 1024
"""Minimum side, in pixels, of a JPEG image that is decoded at a reduced size."""
_DEEP = ("I;16", "I;16B", "I;16L", "I", "F")
"""Modes of Pillow with more than 8 bits per pixel."""
GREY = ("1", "L", "LA", *_DEEP)
"""Modes of Pillow without colours (greyscale)."""


def opened_image(value: Any) -> Any:
    """Return the Pillow image of a raw value; files are opened but not decoded. Raises ``Unusable``."""
    from PIL import Image, UnidentifiedImageError

    name = image_name(value)
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


def image_name(value: Any, unnamed: str = "the image") -> str:
    """Return the name of an image file, for messages and tables; ``unnamed`` for an image in memory."""
    return value if isinstance(value, str) and not value.startswith(URI) else unnamed


def _opened(value: Any) -> Any:
    from PIL import Image

    if isinstance(value, str) and value.startswith(URI):
        return _image(base64.b64decode(value.partition(",")[2], validate=True))
    if isinstance(value, (str, Path)):
        path = Path(value).expanduser()
        if path.is_dir():
            raise ValueError("it is a directory")
        reading = current()
        content = None if reading is None else reading.content(path, lambda path: path.open("rb"))
        # Read into memory, since an open file would only be closed by the garbage collector.
        return _image(path.read_bytes() if content is None else content)
    if isinstance(value, bytes):
        return _image(value)
    if isinstance(value, Image.Image):
        return value
    return Image.fromarray(_array(value))


def _image(content: bytes) -> Any:
    """Return the Pillow image of a file's content, in one of ``FORMATS`` that this Pillow reads."""
    from PIL import Image

    Image.init()
    return Image.open(io.BytesIO(content), formats=[name for name in FORMATS if name in Image.OPEN])


def _array(value: Any) -> np.ndarray:
    """Convert an array to pixels (H, W) or (H, W, C) as uint8; fractions from 0 to 1 are scaled. Raises
    ``ValueError``.
    """
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


def converted(image: Any, mode: str, name: str, least: int = 0) -> Any:
    """Decode an image in ``mode``, rotated by its EXIF data, on a white background. Raises ``Unusable`` for a damaged
    file.

    Large JPEG files are decoded at a half, quarter or eighth of their size, but with at least ``_DRAFT`` and at least
    ``least`` pixels on each side.
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


def reduced(value: Any, side: int = SHOWN) -> Any:
    """Convert a raw image to an RGB Pillow image of at most ``side`` pixels along each axis. Raises ``Unusable``."""
    image = converted(opened_image(value), "RGB", image_name(value))
    image.thumbnail((side, side))
    return image


def picture_of(value: Any) -> str | None:
    """Return a small picture of a raw image for reports, as a data URI; None if the image cannot be read."""
    try:
        return as_uri(reduced(value))
    except Unusable:
        return None
