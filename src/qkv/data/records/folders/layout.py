"""Recognise the layout of folders of images or sounds: splits by their usual names, classes, and files to ignore."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from qkv.system.errors import UserError

_SPLITS = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "validate": "validation",
    "dev": "validation",
    "development": "validation",
    "test": "test",
    "testing": "test",
    "tst": "test",
}
_FILLERS = frozenset(
    (
        *("set", "data", "dataset", "split", "folder", "dir", "images", "image", "imgs", "img", "pictures", "photos"),
        *("sounds", "sound", "audio", "wav", "wavs", "clips", "recordings"),
    )
)
"""Words that may accompany the name of a split, as in "training_set" and "test images"."""
_LITTER = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
_LITTER |= {"thumbs.db", "desktop.ini", "ehthumbs.db", "icon\r"}
"""Lower-case names of folders and files that operating systems and programs create; names with a leading dot are
ignored too.
"""
_SHOWN = 3


class FileKind(NamedTuple):
    """Kind of values that folders hold: the word for one of them, which names its column, and extensions of files.

    ``find``: function of a folder that returns (values in it and below, such as files, other files); None: files with
    one of the extensions.
    """

    noun: str
    suffixes: tuple[str, ...]
    find: Callable[[Path], tuple[list[Path], list[Path]]] | None = None

    @property
    def article(self) -> str:
        """The noun with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    def values(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Return (values in a folder and below, other files)."""
        return visible(folder, self.suffixes) if self.find is None else self.find(folder)


class FolderLayout(NamedTuple):
    """Layout of a folder of files.

    ``rooms``: folder of each split; ``notes``: sentences on folders and files that are ignored.
    """

    rooms: dict[str, Path]
    notes: tuple[str, ...]


def is_litter(name: str) -> bool:
    """Return True for the name of a file or folder that an operating system or a program left: ``.DS_Store``,
    ``Thumbs.db``, ``__MACOSX``, ``.ipynb_checkpoints``, ``._x.jpg`` and so on.
    """
    return name.startswith(".") or name.casefold() in _LITTER


def visible(folder: Path, suffixes: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return (files with one of the extensions, other files) in a folder and below, sorted, without the files of
    ``is_litter``.
    """
    values, rest = list[Path](), list[Path]()
    for path in sorted(_files(folder)):
        (values if path.suffix.lower() in suffixes else rest).append(path)
    return values, rest


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_litter(name)]
        for name in files:
            path = Path(place, name)
            if not is_litter(name) and path.is_file():
                yield path


def split_named(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Parse a folder's name into (split, other words), such as ("train", ("seg",)) for "seg_train"; None if it names no
    split.

    Case, the words of ``_FILLERS`` and separators between words do not matter: "Training Set", "test-images", "valset".
    """
    words = [word for word in re.split(r"[\W_]+", name.casefold()) if word]
    words = [part for word in words for part in _parted(word)]
    splits = [_SPLITS[word] for word in words if word in _SPLITS]
    if len(splits) != 1:
        return None
    return splits[0], tuple(word for word in words if word not in _SPLITS and word not in _FILLERS)


def _parted(word: str) -> tuple[str, ...]:
    """Split "trainset" and "testdata" into two words; return other words alone."""
    for filler in ("set", "data", "images", "imgs"):
        if word.endswith(filler) and word.removesuffix(filler) in _SPLITS:
            return word.removesuffix(filler), filler
    return (word,)


def layout(folder: Path, kind: FileKind) -> FolderLayout:
    """Find the folder of each split: subfolders with names of splits, else the folder itself as "train".

    A folder that only holds another folder of folders, as after unpacking an archive, is replaced by that inner folder.
    Folders without any value of this kind are neither classes nor splits. If there are at least two splits, folders
    with other names are ignored. Raises ``UserError`` for two folders of one split.
    """
    folder, notes = _unwrapped(folder, kind)
    inside = _subfolders(folder)
    holding = [path for path in inside if _holds_values(path, kind)]
    notes += _empty([path for path in inside if path not in holding], folder, kind)
    splits = _splits(holding)
    if not splits:
        return FolderLayout({"train": folder}, tuple(notes))
    strays = [path.name for path in holding if path not in splits.values()]
    strays += sorted(path.name for path in _values_in(folder, kind))
    if strays:
        notes.append(f"{_listed(strays)} of {folder} {_is(strays)} in no split and {_is(strays)} ignored")
    rooms = dict[str, Path]()
    for split, path in splits.items():
        rooms[split], more = _unwrapped(path, kind)
        notes += more
    return FolderLayout(rooms, tuple(notes))


def _unwrapped(folder: Path, kind: FileKind) -> tuple[Path, list[str]]:
    """Descend to the folder that holds the classes or splits; return (this folder, sentences on ignored folders)."""
    notes = list[str]()
    while not _values_in(folder, kind):
        holding = [path for path in _subfolders(folder) if _holds_values(path, kind)]
        if len(holding) != 1 or _values_in(holding[0], kind):
            break
        if sum(_holds_values(path, kind) for path in _subfolders(holding[0])) < 2:
            break
        notes += _empty([path for path in _subfolders(folder) if path not in holding], folder, kind)
        folder = holding[0]
    return folder, notes


def _splits(holding: Sequence[Path]) -> dict[str, Path]:
    """Return the folder of each split among folders of values; empty if the folders are classes. Raises
    ``UserError``.
    """
    named = [(path, part) for path in holding if (part := split_named(path.name)) is not None]
    rests = [rest for _, (split, rest) in named if split == "train"]
    if not rests:
        return {}
    alike = [(split, path) for path, (split, rest) in named if rest == rests[0]]
    splits = dict(alike)
    if len(splits) < 2 and len(alike) < len(holding):
        return {}
    twice = next((split for split in splits if sum(other == split for other, _ in alike) > 1), None)
    if twice is not None:
        names = " and ".join(path.name for split, path in alike if split == twice)
        raise UserError(f"{holding[0].parent} has two folders for the {twice} split, {names}; keep one of them")
    return splits


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _values_in(folder: Path, kind: FileKind) -> list[Path]:
    """Return the values directly in a folder, without those in subfolders."""
    return [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in kind.suffixes and not is_litter(path.name) and path.is_file()
    ]


def _holds_values(folder: Path, kind: FileKind) -> bool:
    return not is_litter(folder.name) and any(path.suffix.lower() in kind.suffixes for path in _files(folder))


def _empty(folders: Sequence[Path], parent: Path, kind: FileKind) -> list[str]:
    names = [path.name for path in folders]
    if not names:
        return []
    holds = "holds" if len(names) == 1 else "hold"
    return [f"{_listed(names)} of {parent} {holds} no {kind.noun} and {_is(names)} ignored"]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {more:,} more" if more > 0 else "")


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
