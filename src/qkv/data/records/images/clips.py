"""Clips in files: animations, arrays, and folders of numbered frames."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.data.records.folders.layout import FileKind, layout, visible
from qkv.data.records.images.image_files import opened_image, reduced
from qkv.data.records.images.pictures import SUFFIXES, is_pixels
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Unusable
from qkv.system.errors import UserError

ARRAYS = ".npy"
"""Extension of a file that holds an array of frames."""
_IMAGE = "image"
_SAMPLE = 8
"""Number of files or folders that are examined to recognise a folder of clips."""
_NEIGHBOURS = 4
"""Number of pictures per folder that are compared to tell frames of a clip from other pictures."""
_THUMBNAIL = 16
"""Height and width in pixels to which pictures are reduced for this comparison."""
_NUMBER = re.compile(r"(.*?)(\d+)")


def is_clip(value: object) -> bool:
    """Return True for a clip in memory: an array (T, H, W) or (T, H, W, C) of 1, 3 or 4 channels, or a nested list of
    that shape.
    """
    if isinstance(value, np.ndarray):
        return are_frames(value.shape, value.dtype) and not is_pixels(value)
    depth = 0
    while isinstance(value, (list, tuple)) and value:
        value, depth = value[0], depth + 1
    return depth in (3, 4) and isinstance(value, (int, float)) and not isinstance(value, bool)


def are_frames(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Return True if an array of this shape and dtype can be the frames of a clip."""
    return dtype.kind in "buif" and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4)))


def in_order(files: Sequence[Path]) -> list[Path]:
    """Sort files by name, where numbers in the names count by value, so that frame 2 precedes frame 10."""
    return sorted(files, key=lambda path: [int(part) if part.isdecimal() else part for part in _split(path.name)])


def _split(name: str) -> list[str]:
    return re.split(r"(\d+)", name)  # texts and numbers alternate


def holds_clips(folder: Path) -> bool:
    """Return True if a folder holds clips and no other pictures.

    Clips are animations, arrays of frames, or folders of frames inside folders of classes. The frames of a folder must
    be numbered from 0 or 1 without gaps and must clearly belong to one film.
    """
    pictures = _pictures(folder)
    files = [path for each in pictures.values() for path in each]
    some = files[:: max(1, len(files) // _SAMPLE)]
    arrays = sum(path.suffix.lower() == ARRAYS for path in files)
    if arrays or not files:
        return bool(files) and arrays == len(files) and all(map(_is_array_of_frames, some))
    if all(map(_is_animation, some)):
        return True
    return _are_numbered(pictures) and _are_films(pictures)


def numbered_pictures(folder: Path) -> bool:
    """Return True if the pictures of a folder are numbered in subfolders of class folders, as frames of clips are."""
    return _are_numbered(_pictures(folder))


def _pictures(folder: Path) -> dict[Path, list[Path]]:
    """Return the folder of each split -> its files that hold pictures or arrays."""
    rooms = layout(folder, CLIPS).rooms
    return {room: visible(room, CLIPS.suffixes)[0] for room in rooms.values()}


def _are_numbered(pictures: Mapping[Path, Sequence[Path]]) -> bool:
    """Return True if all files in the split folders ``pictures`` are numbered frames in subfolders of class folders."""
    return any(pictures.values()) and all(_are_numbered_frames(room, each) for room, each in pictures.items())


def _are_films(pictures: Mapping[Path, Sequence[Path]]) -> bool:
    """Return True if numbered pictures in folders are clearly frames of films.

    The pictures of a folder must have one size. In addition, either all files and all folders have the same names
    except for numbers, as in ``clip7/frame1.png``, or neighbouring pictures look alike. Numbered files alone do not
    distinguish ``dog/husky/1.jpg`` from a clip.
    """
    folders = [(path, each) for room, files in pictures.items() for path, each in frame_folders(room, files).items()]
    some = folders[:: max(1, len(folders) // _SAMPLE)]
    if not all(_have_one_size(each[:_SAMPLE]) for _, each in some):
        return False
    names = {_numbered(path)[0] for path, _ in folders if _numbered(path)[1]}
    numbered = len(names) == 1 and "" not in names and all(_numbered(path)[1] for path, _ in folders)
    frames = {_numbered(each[0])[0] for _, each in folders}
    return (numbered and len(frames) == 1 and len(folders) > len(pictures)) or _are_continuous(
        [each for _, each in some]
    )


def _have_one_size(files: Sequence[Path]) -> bool:
    try:
        return len({opened_image(str(path)).size for path in files}) == 1
    except Unusable:
        return False


def _are_continuous(folders: Sequence[Sequence[Path]]) -> bool:
    """Return True if consecutive pictures differ less than half as much as pictures of different folders."""
    try:
        small = [[_thumbnail(path) for path in each[:_NEIGHBOURS]] for each in folders]
    except Unusable:
        return False
    beside = [np.abs(a - b).mean() for each in small for a, b in pairwise(each)]
    apart = [np.abs(a[0] - b[0]).mean() for a, b in pairwise(small)]
    return bool(beside and apart) and 2 * float(np.median(beside)) < float(np.median(apart))


def _thumbnail(path: Path) -> np.ndarray:
    return np.asarray(reduced(str(path), _THUMBNAIL).convert("L").resize((_THUMBNAIL,) * 2), np.float64)


def _is_array_of_frames(path: Path) -> bool:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return are_frames(array.shape, array.dtype)


def _is_animation(path: Path) -> bool:
    try:
        return int(getattr(opened_image(str(path)), "n_frames", 1)) > 1
    except (Unusable, OSError, ValueError, SyntaxError, EOFError):
        return False


def _are_numbered_frames(room: Path, files: Sequence[Path]) -> bool:
    folders = frame_folders(room, files)
    if set(folders) != {path.parent for path in files}:
        return False
    numbers = [[int(_numbered(path)[1]) for path in each] for each in folders.values()]
    return all(each == list(range(each[0], each[0] + len(each))) and each[0] in (0, 1) for each in numbers)


def frame_folders(room: Path, files: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the frames in order for each folder of frames among the folders of ``files``.

    A folder of frames lies below a class folder in ``room``, and holds at least two files whose names differ only by a
    number.
    """
    folders = dict[Path, list[Path]]()
    for path in files:
        if len(path.relative_to(room).parts) > 2:
            folders.setdefault(path.parent, []).append(path)
    return {
        folder: in_order(each)
        for folder, each in folders.items()
        if len(each) > 1 and len({(_numbered(path)[0], path.suffix) for path in each}) == 1 and _numbered(each[0])[1]
    }


def clips_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return (clips in a folder and below, other files). Clips are files of animations and arrays, and folders of
    frames.
    """
    files, other_files = visible(folder, (*SUFFIXES, ARRAYS))
    folders = frame_folders(folder, files)
    return sorted({path.parent if path.parent in folders else path for path in files}), other_files


CLIPS = FileKind("image", (*SUFFIXES, ARRAYS), clips_in)


def _numbered(path: Path) -> tuple[str, str]:
    """Split a file's name into (text, number at the end); the number is "" if there is none."""
    match = _NUMBER.fullmatch(path.stem)
    return (match[1], match[2]) if match else (path.stem, "")


def pixel_table(text: TextSource, arrays: Mapping[str, np.ndarray]) -> Table:
    """Build the table of an ``.npz`` or ``.npy`` file of images or clips.

    The file holds one array of images (N, H, W, C) or of clips (N, T, H, W) or (N, T, H, W, C). Arrays (N,) are further
    columns. Raises ``UserError`` for several arrays of pixels.
    """
    large = [name for name, each in arrays.items() if are_pixels(each)]
    if len(large) != 1:
        raise UserError(f"{text.name} has several arrays of pixels, {', '.join(large)}; keep one of them")
    values = arrays[large[0]]
    columns = {name: each for name, each in arrays.items() if each.ndim == 1 and len(each) == len(values)}
    rows = [
        Row(i + 1, {_IMAGE: values[i], **{name: each[i].item() for name, each in columns.items()}})
        for i in range(len(values))
    ]
    return Table(text.name, (_IMAGE, *columns), lambda: iter(rows), text.digest(), {_IMAGE: (_IMAGE,)})


def are_pixels(array: np.ndarray) -> bool:
    """Return True for an array of several images with channels, or of several clips."""
    frames = array.ndim == 5 and are_frames(array.shape[1:], array.dtype)
    return frames or (array.ndim == 4 and array.dtype.kind in "buif")
