"""Pictures in messages of clients: data URIs, and files below one folder."""

from __future__ import annotations

import base64
from pathlib import Path

from qkv.data.records.images.image_files import opened_image
from qkv.data.records.images.pictures import URI
from qkv.data.records.values import Unusable
from qkv.serving.limits import MAX_PIXELS, PICTURE_BYTES
from qkv.system.errors import UserError, quoted


def served_picture(picture: str, folder: Path | None) -> str:
    """Return a picture as a data URI: one that is given so, or the file of that name in ``folder``, which may be in a
    folder below. Of files outside, also those that a link leads to, nothing is told.

    Raises ``UserError``, also for a picture of more than ``MAX_PIXELS`` pixels or ``PICTURE_BYTES`` bytes.
    """
    uri = picture if picture.startswith(URI) else _file_uri(picture, folder)
    try:
        image = opened_image(uri)
    except Unusable as error:
        raise UserError(f"messages: {error}") from None
    if image.width * image.height > MAX_PIXELS:
        raise UserError(f"messages: an image has {image.width:,} × {image.height:,} pixels, more than {MAX_PIXELS:,}")
    return uri


def _file_uri(name: str, folder: Path | None) -> str:
    allowed = f"allowed: an image as {URI}png;base64,…"
    if folder is None:
        raise UserError(f"messages: {quoted(name)} given; {allowed}")
    path = _file_below(name, folder)
    if path is None:
        raise UserError(f"messages: {quoted(name)} is no file below the folder of pictures; {allowed}, or such a file")
    try:
        with path.open("rb") as file:
            content = file.read(PICTURE_BYTES + 1)
    except OSError:
        raise UserError(f"messages: {quoted(name)} cannot be read") from None
    if len(content) > PICTURE_BYTES:
        raise UserError(f"messages: {quoted(name)} has more than {PICTURE_BYTES:,} bytes")
    return f"{URI}file;base64,{base64.b64encode(content).decode()}"


def _file_below(name: str, folder: Path) -> Path | None:
    """Return the path of a regular file below a folder, without links; None for any other."""
    try:
        root = folder.resolve()
        path = (root / name).resolve()
        return path if path.is_relative_to(root) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null character, links in a circle
        return None
