"""Items of a search: the texts of a file, or the values of an input of a model that matches two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.data.corpora.text import TextSource
from qkv.data.processors.processor import build_processor
from qkv.data.records.columns.guess import choose
from qkv.data.records.formats import ENDINGS, table_of
from qkv.data.records.model import BadRow, Role
from qkv.data.records.open import open_rows
from qkv.data.records.table import lines
from qkv.runs.run import Run
from qkv.spec.data import Data
from qkv.system.errors import UserError

_TEXT = Role("text", "text", ("sentence", "content", "body", "review", "question", "title"))


class TextFile:
    """Texts of a file with their line numbers; each iteration reads the file again."""

    def __init__(self, path: Path, column: str | None):
        if not path.is_file():
            raise UserError(f"there is no file {str(path)!r} to search")
        self.path, self.source = path, TextSource.of_file(path, str(path))
        self.digest = self.source.digest()
        ending = ENDINGS.get(path.name.lower().removesuffix(".gz").rpartition(".")[2])
        self.column, self.table = column, None
        if ending in ("csv", "tsv", "jsonl", "json"):
            columns = {"text": column} if column else {}
            data = Data(source=str(path), columns=columns)
            self.table = table_of(str(path), data, (_TEXT,), "the file to search")
            self.column = choose(self.table, (_TEXT,), columns, "search").columns["text"]
        elif column is not None:
            raise UserError(f"{str(path)!r} is read as one text per line and has no columns; omit column={column!r}")

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for text, line in self._all():
            if text.strip():
                yield text.strip(), line

    def _all(self) -> Iterator[tuple[str, int]]:
        if self.table is None or self.column is None:
            yield from ((text, number) for number, text in enumerate(lines(self.source), 1))
            return
        for row in self.table.parse():
            if not isinstance(row, BadRow) and isinstance(row.values.get(self.column), str):
                yield row.values[self.column], row.line

    def at(self, rows: set[int]) -> dict[int, tuple[str, int]]:
        """Return number -> (text, line) for the text numbers in ``rows``, counted from 0."""
        return {number: text for number, text in enumerate(self) if number in rows}


class ValueFile:
    """Values of the input ``name`` in a folder or a table, for a run that matches; ``digest``: hash of their names.

    ``column``: column of a table; default: guessed. Raises ``UserError`` for a file without such values.
    """

    def __init__(self, run: Run, name: str, path: Path, column: str | None):
        data, self.path, self.column = run.recipe.data, path, column
        columns = {name: column} if column else {}
        part = data.processors[name]
        role = build_processor(part).role
        single = data.changed(inputs={}, processor=part, columns={role.name: column} if columns else {})
        records = open_rows(single, (role,), str(path), "data")
        self.values, self.digest = [row[role.name] for row in records.splits["data"]], records.digest
        self._processor = build_processor(run.vocabulary.processors[name])

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        yield from ((value, number) for number, value in enumerate(self.values, 1))

    def at(self, rows: set[int]) -> dict[int, tuple[str, int]]:
        """Return number -> (value as a short text, number counted from 1) of the values with the numbers in ``rows``,
        counted from 0.
        """
        return {row: (self._processor.shown(self.values[row]), row + 1) for row in rows}


def items_of(run: Run, path: Path, column: str | None) -> tuple[str, TextFile | ValueFile]:
    """Return (name of the input that is searched, its values): those of a folder, of a table, or the texts of a file.

    In a table, ``column`` decides by the input that it was in training; else the first input that is not text.
    Raises ``UserError``.
    """
    data = run.recipe.data
    text = data.text_input
    signals = [name for name in data.inputs if name != text]
    named = next((name for name in data.inputs if column is not None and data.columns.get(name) == column), None)
    table = path.is_dir() or path.name.lower().removesuffix(".gz").rpartition(".")[2] in ENDINGS
    name = named or (signals[0] if table or text is None else text)
    if name == text:
        return name, TextFile(path, column)
    if not path.exists():
        raise UserError(f"there is no file or folder {str(path)!r} to search")
    return name, ValueFile(run, name, path, column)
