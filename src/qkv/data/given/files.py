"""Write data from memory to files, each named after the digest of its content."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.given.tables import Given, is_given, rows_of
from qkv.spec.files import given as spec
from qkv.system.errors import UserError


class Kept(NamedTuple):
    """Folder of a run, and the source of its data for each split."""

    folder: Path
    sources: dict[str, str]


@contextmanager
def write_splits(
    splits: Mapping[str, Any], place: Path, folder_of: Callable[[str], Path], running: bool, used: str = ""
) -> Iterator[Kept]:
    """Context manager that writes each split that is data in memory to a file in the folder of a run; a split that
    names a file is unchanged.

    ``place``: folder for unfinished files, on the same disk as the run; ``folder_of``: function from the digest of the
    first split to the run's folder; ``running``: write a running text, else a table. If the context ends with an
    exception, the written files are removed, except files that are named in the file ``used`` of the run's folder.

    Raises ``UserError`` for values that are not plain data, and if the files cannot be written.
    """
    files = _Files()
    home: Path | None = None
    try:
        with _clear_errors(place):
            files.make_folder(place)
            names = {split: files.write(value, split, place, running) for split, value in splits.items()}
            home = folder_of(next(name for name in names.values() if name in files.partial))
            files.make_folder(home / spec.FOLDER)
            sources = {split: files.finish(name, home / spec.FOLDER) for split, name in names.items()}
        yield Kept(home, sources)
    except BaseException:
        names_used = (home / used).read_text(encoding="utf-8") if home and (home / used).is_file() else ""
        files.remove(names_used)
        raise


class _Files:
    """Record of the files and folders that were written, so that they can be removed again.

    ``partial``: unfinished files by their final names.
    """

    def __init__(self) -> None:
        self.partial: dict[str, Path] = {}
        self._made: list[Path] = []

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents."""
        self._made += reversed([folder for folder in (path, *path.parents) if not folder.exists()])
        path.mkdir(parents=True, exist_ok=True)

    def write(self, data: Any, split: str, place: Path, running: bool) -> str:
        """Write one split under a temporary name; return its final name, or ``data`` if it names a file."""
        if not is_given(data):
            return str(data)
        partial = place / f".{secrets.token_hex(8)}"
        self._made.append(partial)
        what = "data" if split == "train" else split
        rows, digest = rows_of(data, what), hashlib.sha256()
        with partial.open("xb") as file:
            for block in _text(rows, what) if running else _lines(rows):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        name = digest.hexdigest()[: spec.DIGITS] + (spec.TEXT if running else spec.TABLE)
        if name in self.partial:  # another split has the same content
            partial.unlink()
        else:
            self.partial[name] = partial
        return name

    def finish(self, name: str, folder: Path) -> str:
        """Give the file ``name`` its final name in ``folder``; return its path. Other names are returned unchanged."""
        if name not in self.partial:
            return name
        target, partial = folder / name, self.partial[name]
        if not target.exists():
            self._made.append(target)
        if partial.exists():  # not yet renamed for a split with the same content
            os.replace(partial, target)
        return str(target)

    def remove(self, used: str) -> None:
        """Remove the files whose names are not in ``used``, and the folders if they are empty."""
        for path in reversed(self._made):
            with suppress(OSError):
                if path.is_dir():
                    path.rmdir()
                elif path.name not in used:
                    path.unlink()


@contextmanager
def _clear_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the data cannot be written to {place}: {error.strerror or error}; name another folder"
        ) from None


def _lines(table: Given) -> Iterator[bytes]:
    """Yield the rows as JSON objects, one per line."""
    for row in table.rows:
        text = json.dumps(row, ensure_ascii=False)
        try:
            yield text.encode() + b"\n"
        except UnicodeEncodeError:  # lone surrogate, which the reader of the table reports
            yield json.dumps(row).encode() + b"\n"


def _text(table: Given, what: str) -> Iterator[bytes]:
    """Yield the texts one after the other, each on a new line; a text of several lines ends with an empty line.

    Raises ``UserError`` for a missing text, for values that are not texts, and for more than one column.
    """
    if len(table.columns) != 1:
        raise UserError(
            f"{what} has the columns {', '.join(table.columns)}; a running text has one column: name the task, such as "
            "task='classify', or give the texts alone"
        )
    (column,) = table.columns
    between = ""
    for number, row in enumerate(table.rows):
        text = row.get(column)
        if not isinstance(text, str):
            raise UserError(f"{what}: row {number} (counted from 0) is not a text; remove it")
        try:
            yield (between + text).encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{what}: row {number} (counted from 0) contains half a surrogate pair, which is not a character"
            ) from None
        ends = len(text) - len(text.rstrip("\n"))
        between = "\n" * max(0, (2 if "\n" in text.strip("\n") else 1) - ends)
