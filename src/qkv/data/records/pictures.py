"""Image files: their names, and folders of them as tables."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.records.table import Row, Table
from qkv.spec.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".ico")
"""Extensions of image files."""
URI = "data:image/"
"""Beginning of an image that is written as text (data URI, base64)."""
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
_SHOWN = 3
Values = Callable[[Path], tuple[list[Path], list[Path]]]
"""Function of a folder that returns (values in it and below, such as images, other files)."""


def is_image(value: object) -> bool:
    """True if a cell names an image file, or holds an image as a data URI."""
    return isinstance(value, str) and (value.startswith(URI) or value.strip().lower().endswith(SUFFIXES))


def is_pixels(value: object) -> bool:
    """True for an array of bytes (H, W), or (H, W, C) of 1, 3 or 4 channels: an image."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3, 4))


def is_picture(value: object) -> bool:
    """True for an image in memory: an array of pixels, or an object of Pillow."""
    return is_pixels(value) or type(value).__module__.startswith("PIL.")


def as_uri(value: Any) -> str:
    """Image in memory as text: a PNG file in base64, as a data URI."""
    from PIL import Image

    image = Image.fromarray(value[..., 0] if value.shape[2:] == (1,) else value) if is_pixels(value) else value
    held = io.BytesIO()
    (image.convert("RGB") if image.mode == "CMYK" else image).save(held, "PNG")
    return f"{URI}png;base64,{base64.b64encode(held.getvalue()).decode()}"


def rooms(folder: Path) -> dict[str, Path]:
    """Folders of the splits, by split: subfolders ``train``, ``test`` and so on if there are no others, else the folder
    itself as "train".
    """
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    splits = {_SPLITS[path.name.lower()]: path for path in inside if path.name.lower() in _SPLITS}
    return splits if "train" in splits and len(inside) == len(splits) else {"train": folder}


def visible(folder: Path, also: Sequence[str] = ()) -> tuple[list[Path], list[Path]]:
    """(files of images, other files) in a folder and below, sorted, without hidden ones. ``also``: more extensions."""
    images, others = list[Path](), list[Path]()
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            (images if path.suffix.lower() in (*SUFFIXES, *also) else others).append(path)
    return images, others


def folder_tables(source: str, option: str, values: Values | None = None) -> dict[str, Table]:
    """Tables of a folder of images, by split: of its subfolders ``train``, ``test`` and so on, else "train" alone.

    The label of an image is the name of the subfolder that it is in, at any depth below. ``values``: reads the values
    in a folder; default: one for each image. Raises ``UserError`` for a folder without images.
    """
    folder = Path(source).expanduser()
    found = rooms(folder)
    if list(found.values()) == [folder]:
        return {"train": _table(folder, source, option, values)}
    return {split: _table(path, f"{source.rstrip('/')}/{path.name}", option, values) for split, path in found.items()}


def folder_table(source: str, option: str, values: Values | None = None) -> Table:
    """Table of all images in a folder; see ``folder_tables``."""
    return _table(Path(source).expanduser(), source, option, values)


def _table(folder: Path, name: str, option: str, values: Values | None) -> Table:
    images, others = visible(folder) if values is None else values(folder)
    if not images:
        raise UserError(
            f"{option}: the folder {name!r} holds no image; name a file, or a folder with one subfolder of images for "
            f"each class (extensions: {', '.join(SUFFIXES)})"
        )
    labels = [path.relative_to(folder).parts[0] if path.parent != folder else "" for path in images]
    labelled = any(labels)

    def parse() -> Iterator[Row]:
        for line, (path, label) in enumerate(zip(images, labels, strict=True), 1):
            yield Row(line, {"image": str(path), **({"label": label} if labelled else {})})

    columns = ("image", "label") if labelled else ("image",)
    defaults = {"image": ("image",), "label": columns[1:]}
    return Table(name, columns, parse, _digest(folder, images), defaults, notes=_notes(name, [p.name for p in others]))


def _digest(folder: Path, images: Sequence[Path]) -> str:
    """Hash of the names and sizes of the files."""
    total = hashlib.sha256()
    for path in images:
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            total.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n".encode())
    return total.hexdigest()


def _notes(name: str, others: Sequence[str]) -> tuple[str, ...]:
    if not others:
        return ()
    some = ", ".join(others[:_SHOWN]) + (" …" if len(others) > _SHOWN else "")
    return (f"{len(others):,} file{'s' * (len(others) > 1)} of {name} are no images and were not read: {some}",)
