"""Read folders of files, such as images or sounds, as tables of values and the names of their subfolders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qkv.data.records.folders.layout import FileKind, layout
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError

_SHOWN = 3


def folder_tables(source: str, option: str, kind: FileKind) -> dict[str, Table]:
    """Build one table of values per split of a folder: per subfolder ``train``, ``test`` and so on; without such
    subfolders, the whole folder is "train".

    The label of a value is the name of the subfolder that contains it, at any depth. If the training values have
    labels, a split without labels is ignored. Raises ``UserError`` for a folder without values.
    """
    rooms, notes = layout(Path(source).expanduser(), kind)
    tables = {split: _table({path: kind.values(path)}, str(path), option, kind) for split, path in rooms.items()}
    if len(rooms) == 1:
        tables = {"train": replace(tables["train"], name=source)}
    labelled = "label" in tables["train"].columns
    for split, table in list(tables.items()):
        if labelled and "label" not in table.columns:
            del tables[split]
            notes = (*notes, f"the {kind.noun}s of {table.name} are in no subfolder of a class and are ignored")
    tables["train"] = replace(tables["train"], notes=(*notes, *tables["train"].notes))
    return tables


def folder_table(source: str, option: str, kind: FileKind) -> Table:
    """Build one table of all values in a folder, of all splits; see ``folder_tables``."""
    rooms, notes = layout(Path(source).expanduser(), kind)
    table = _table({path: kind.values(path) for path in rooms.values()}, source, option, kind)
    return replace(table, notes=(*notes, *table.notes))


def _table(contents: Mapping[Path, tuple[list[Path], list[Path]]], name: str, option: str, kind: FileKind) -> Table:
    """Build the table of the values in some folders, whose subfolders are classes."""
    values = [(folder, path) for folder, (each, _) in contents.items() for path in each]
    if not values:
        raise UserError(
            f"{option}: the folder {name!r} holds no {kind.noun}; name a file, or a folder with one subfolder of "
            f"{kind.noun}s for each class (extensions: {', '.join(kind.suffixes)})"
        )
    labels = [path.relative_to(folder).parts[0] if path.parent != folder else "" for folder, path in values]
    labelled = any(labels)

    def parse() -> Iterator[Row]:
        for line, ((_, path), label) in enumerate(zip(values, labels, strict=True), 1):
            yield Row(line, {kind.noun: str(path), **({"label": label} if labelled else {})})

    columns = (kind.noun, "label") if labelled else (kind.noun,)
    defaults = {kind.noun: (kind.noun,), "label": columns[1:]}
    other_files = [path.name for _, each in contents.values() for path in each]
    return Table(name, columns, parse, _digest(values), defaults, notes=_notes(name, other_files, kind))


def _digest(values: Sequence[tuple[Path, Path]]) -> str:
    """Hash the sizes of the files and their paths relative to their folders."""
    total = hashlib.sha256()
    for folder, path in values:
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            total.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n".encode())
    return total.hexdigest()


def _notes(name: str, other_files: Sequence[str], kind: FileKind) -> tuple[str, ...]:
    if not other_files:
        return ()
    some = ", ".join(other_files[:_SHOWN]) + (" …" if len(other_files) > _SHOWN else "")
    if len(other_files) == 1:
        return (f"1 file of {name} is not {kind.article} and was ignored: {some}",)
    return (f"{len(other_files):,} files of {name} are not {kind.noun}s and were ignored: {some}",)
