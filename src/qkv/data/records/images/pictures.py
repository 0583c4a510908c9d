"""Images in cells: names of files, arrays of pixels, and images that are written as text."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from qkv.data.records.folders.layout import FileKind

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".ico")
"""Extensions of image files."""
FORMATS = ("PNG", "JPEG", "MPO", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "ICO", "TGA", "JPEG2000", "AVIF")
"""Formats of images that are read, as Pillow names them; others are refused, since to read some, such as EPS, Pillow
runs other programs.
"""
IMAGES = FileKind("image", SUFFIXES)
URI = "data:image/"
"""Beginning of an image that is written as text (data URI, base64)."""


def is_image(value: object) -> bool:
    """Return True if a cell names an image file, or holds an image as a data URI."""
    return isinstance(value, str) and (value.startswith(URI) or value.strip().lower().endswith(SUFFIXES))


def is_pixels(value: object) -> bool:
    """Return True for an image as an array of bytes: (H, W), or (H, W, C) with 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3, 4))


def is_picture(value: object) -> bool:
    """Return True for an image in memory: an array of pixels, or a Pillow object."""
    return is_pixels(value) or type(value).__module__.startswith("PIL.")


def as_uri(value: Any) -> str:
    """Encode an image in memory as text: a PNG file in base64, as a data URI."""
    from PIL import Image

    image = Image.fromarray(value[..., 0] if value.shape[2:] == (1,) else value) if is_pixels(value) else value
    buffer = io.BytesIO()
    (image.convert("RGB") if image.mode == "CMYK" else image).save(buffer, "PNG")
    return f"{URI}png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
