"""Recognise a table of examples that the user gave instead of a recipe or a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from qkv.choosing.guessed import guess_task
from qkv.data.corpora.text import TextSource
from qkv.data.records.formats import ENDINGS, SQUAD, table_of
from qkv.data.records.named import TABLES
from qkv.data.records.table import head
from qkv.spec.data import Data
from qkv.spec.tasks import Task
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task

_SHOWN = 8


class TableFound(NamedTuple):
    """Table of examples: its columns, and the kind of task that fits it, None if unclear."""

    columns: tuple[str, ...]
    task: str | None

    @property
    def described(self) -> str:
        """Names of the columns as a noun phrase for a sentence."""
        if not self.columns:
            return "a data set of examples"
        more = len(self.columns) - _SHOWN
        names = ", ".join(map(repr, self.columns[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
        return f"a table with the column{'s' * (len(self.columns) > 1)} {names}"


def found_table(source: str | Path) -> TableFound | None:
    """Return the columns and the probable task of the table of examples in the file ``source``; None if it is not a
    table.

    Tables are recognised by extension and first lines: CSV and TSV with two columns or more, JSONL, CoNLL, SQuAD, a
    list in JSON. The names of built-in data sets also count as tables; their files are not opened. Raises ``UserError``
    if a file has the extension of a table but cannot be read as a table.
    """
    if str(source) in TABLES and not Path(source).exists():
        return TableFound((), None)
    path = Path(source).expanduser()
    ending = ENDINGS.get(path.name.lower().removesuffix(".gz").rpartition(".")[2])
    if ending is None or not path.is_file() or (ending == "json" and not _holds_examples(path)):
        return None
    try:
        task = guess_task({"source": str(source)})
    except UserError:
        task = None
    roles = build_task(Task.kinds()[task or "classification"]()).roles  # type: ignore[attr-defined]
    columns = table_of(str(source), Data(source=str(source)), roles, "data.source").columns
    return None if ending in ("csv", "tsv") and len(columns) < 2 else TableFound(tuple(columns), task)


def _holds_examples(path: Path) -> bool:
    """Return True if a JSON file is a list, has the form of SQuAD, or holds one object per line; False for a recipe."""
    beginning = head(TextSource.of_file(path, str(path))).lstrip()
    lines = [line.strip() for line in beginning.splitlines() if line.strip()]
    return beginning.startswith("[") or bool(SQUAD.match(beginning)) or (len(lines) > 1 and _is_object(lines[0]))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
