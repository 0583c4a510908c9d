"""Image files: recognise their names, and read folders of them as tables."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.records.images.folders import SUFFIXES, layout, visible
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError

URI = "data:image/"
"""Beginning of an image that is written as text (data URI, base64)."""
_SHOWN = 3
Values = Callable[[Path], tuple[list[Path], list[Path]]]
"""Function of a folder that returns (values in the folder and below, such as images; other files)."""


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


def folder_tables(source: str, option: str, values: Values | None = None, also: Sequence[str] = ()) -> dict[str, Table]:
    """Build one table of images per split of a folder: per subfolder ``train``, ``test`` and so on; without such
    subfolders, the whole folder is "train".

    The label of an image is the name of the subfolder that contains it, at any depth. ``values``: function that lists
    the values in a folder; default: one value per image. ``also``: further extensions of files. If the training images
    have labels, a split without labels is ignored. Raises ``UserError`` for a folder without images.
    """
    rooms, notes = layout(Path(source).expanduser(), also)
    tables = {split: _table({path: values_in(path, values)}, str(path), option) for split, path in rooms.items()}
    if len(rooms) == 1:
        tables = {"train": replace(tables["train"], name=source)}
    labelled = "label" in tables["train"].columns
    for split, table in list(tables.items()):
        if labelled and "label" not in table.columns:
            del tables[split]
            notes = (*notes, f"the images of {table.name} are in no subfolder of a class and are ignored")
    tables["train"] = replace(tables["train"], notes=(*notes, *tables["train"].notes))
    return tables


def folder_table(source: str, option: str, values: Values | None = None, also: Sequence[str] = ()) -> Table:
    """Build one table of all images in a folder, of all splits; see ``folder_tables``."""
    rooms, notes = layout(Path(source).expanduser(), also)
    table = _table({path: values_in(path, values) for path in rooms.values()}, source, option)
    return replace(table, notes=(*notes, *table.notes))


def values_in(folder: Path, values: Values | None) -> tuple[list[Path], list[Path]]:
    """Return (values, other files) of a folder."""
    return visible(folder) if values is None else values(folder)


def _table(contents: Mapping[Path, tuple[list[Path], list[Path]]], name: str, option: str) -> Table:
    """Build the table of the images in some folders, whose subfolders are classes."""
    images = [(folder, path) for folder, (each, _) in contents.items() for path in each]
    if not images:
        raise UserError(
            f"{option}: the folder {name!r} holds no image; name a file, or a folder with one subfolder of images for "
            f"each class (extensions: {', '.join(SUFFIXES)})"
        )
    labels = [path.relative_to(folder).parts[0] if path.parent != folder else "" for folder, path in images]
    labelled = any(labels)

    def parse() -> Iterator[Row]:
        for line, ((_, path), label) in enumerate(zip(images, labels, strict=True), 1):
            yield Row(line, {"image": str(path), **({"label": label} if labelled else {})})

    columns = ("image", "label") if labelled else ("image",)
    defaults = {"image": ("image",), "label": columns[1:]}
    other_files = [path.name for _, each in contents.values() for path in each]
    return Table(name, columns, parse, _digest(images), defaults, notes=_notes(name, other_files))


def _digest(images: Sequence[tuple[Path, Path]]) -> str:
    """Hash the sizes of the files and their paths relative to their folders."""
    total = hashlib.sha256()
    for folder, path in images:
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            total.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n".encode())
    return total.hexdigest()


def _notes(name: str, other_files: Sequence[str]) -> tuple[str, ...]:
    if not other_files:
        return ()
    some = ", ".join(other_files[:_SHOWN]) + (" …" if len(other_files) > _SHOWN else "")
    if len(other_files) == 1:
        return (f"1 file of {name} is not an image and was ignored: {some}",)
    return (f"{len(other_files):,} files of {name} are not images and were ignored: {some}",)
