"""Detect the format of a data file and read its table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.data.reading import cached, identity_of
from qkv.data.records.folders.layout import FileKind
from qkv.data.records.folders.tables import folder_table, folder_tables
from qkv.data.records.images.clips import CLIPS, are_pixels, numbered_pictures, pixel_table
from qkv.data.records.images.pictures import IMAGES
from qkv.data.records.lists import begins_list
from qkv.data.records.model import Role
from qkv.data.records.readers.conll import conll
from qkv.data.records.readers.delimited import delimited, first_fields
from qkv.data.records.readers.fasta import fasta
from qkv.data.records.readers.graph_arrays import arrays_of
from qkv.data.records.readers.graph_tables import graph_table, with_graphs
from qkv.data.records.readers.jsonl import jsonl
from qkv.data.records.readers.label_columns import with_labels
from qkv.data.records.readers.parallel import language_pair, parallel
from qkv.data.records.readers.series_tables import SERIES, array_table, npy_array, with_series
from qkv.data.records.readers.squad import squad
from qkv.data.records.sounds.cells import SOUNDS
from qkv.data.records.table import Table, head
from qkv.spec import data as spec
from qkv.spec.files.given import kept_name
from qkv.system.errors import UserError, nearest

Format = Literal["csv", "tsv", "jsonl", "conll", "squad", "parallel", "fasta"]
ENDINGS: dict[str, Format | Literal["json"]] = {
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "conll": "conll",
    "conllu": "conll",
    "conll03": "conll",
    "bio": "conll",
    "iob": "conll",
    "iob2": "conll",
    "fasta": "fasta",
    "fa": "fasta",
    "faa": "fasta",
    "fna": "fasta",
}
SEPARATOR = "|"
IN_MEMORY = "the table given (its rows count from 0)"
"""Name in messages for a table that was passed in memory."""
SQUAD = re.compile(r'^\s*\{.*"paragraphs"\s*:\s*\[', re.DOTALL)


def table_of(source: str, data: spec.Data, roles: Sequence[Role], option: str, names: Sequence[str] = ()) -> Table:
    """Read the table of examples in the file ``source``, or in two parallel texts ``a | b``.

    For a role of series or of several labels, the table has one column that joins the columns of the series or labels.
    ``option``: name of the option that sets ``source``, such as ``data.source``, for messages; ``names``: names of
    known data sets, for suggestions. Raises ``UserError`` if the source is not a file or not a table.
    """
    columns = f"{option.rpartition('.')[0] or option}.columns"
    table = with_series(_table_of(source, data, roles, option, names), roles, data.columns, columns)
    return with_labels(table, roles, data.columns, columns)


def _table_of(source: str, data: spec.Data, roles: Sequence[Role], option: str, names: Sequence[str]) -> Table:
    if SEPARATOR in source and not Path(source).expanduser().exists():
        return _joined(source, data, option)
    if Path(source).expanduser().is_dir():
        kind = _files(roles)
        return _told_frames(source, folder_table(source, option, kind), kind)
    text = _text(source, option, names)
    if kept_name(source):
        text.name = IN_MEMORY
        return cached((identity_of(source), "jsonl"), lambda: replace(with_graphs(jsonl(text)), given=True))
    if source.lower().endswith(".npz"):
        return cached((identity_of(source), "npz"), lambda: _arrays(text, arrays_of(text)))
    if source.lower().endswith(".npy"):
        return cached((identity_of(source), "npy"), lambda: _arrays(text, {SERIES: npy_array(text)}))
    if not head(text).strip():
        raise UserError(f"{option}: {source!r} is empty")
    kind = data.format or detect_format(text, roles)
    if kind is None:
        where = option.rpartition(".")[0]  # empty if the format cannot be set by an option
        formats = ", ".join(get_args(Format))
        advice = (
            f"name it with {where}.format, one of {formats}" if where else f"end its name in .{', .'.join(ENDINGS)}"
        )
        raise UserError(
            f"{option}: the format of {source!r} is clear neither from its extension nor from its first lines; {advice}"
        )
    columns = tuple(data.columns.values())
    decides = (
        (columns, tuple(roles)) if kind == "parallel" else tuple(column for column in columns if column.isdecimal())
    )
    return cached((identity_of(source), kind, decides), lambda: _read(text, kind, columns, roles))


def split_tables(
    source: str, data: spec.Data, roles: Sequence[Role], option: str, names: Sequence[str] = ()
) -> dict[str, Table]:
    """Return the tables of ``source`` by split. A folder of images or sounds can have several splits; any other source
    is the split "train". Parameters: see ``table_of``.
    """
    if Path(source).expanduser().is_dir():
        kind = _files(roles)
        tables = folder_tables(source, option, kind)
        return {**tables, "train": _told_frames(source, tables["train"], kind)}
    return {"train": table_of(source, data, roles, option, names)}


def folder_of(table: Table) -> Path | None:
    """Return the folder of the file from which a table was read; None for data in memory."""
    return None if table.given else Path(table.name.partition(SEPARATOR)[0].strip()).expanduser().parent


def detect_format(text: TextSource, roles: Sequence[Role]) -> Format | None:
    """Detect the format of a data file from its extension (ignoring ``.gz``), then from its first lines; None if
    unclear.
    """
    beginning = head(text)
    ending = ENDINGS.get(text.name.lower().removesuffix(".gz").rpartition(".")[2])
    if ending == "json" or (ending is None and beginning.lstrip()[:1] in ("{", "[")):
        return "squad" if SQUAD.match(beginning) else "jsonl"
    if ending is None and beginning.startswith(">"):
        return "fasta"
    if ending in (None, "tsv"):
        ending = _by_lines(beginning, roles) or ending
    return ending if ending != "json" else None


def _by_lines(beginning: str, roles: Sequence[Role]) -> Format | None:
    """Detect the format from the first lines of a TSV file or of a file with an unknown extension; None if unclear.

    Tagged sentences are CoNLL, two columns of text are parallel.
    """
    kinds = [role.kind for role in roles]
    filled = [line for line in beginning.splitlines()[:100] if line.strip()]
    if "words" in kinds and "tags" in kinds and not _names(filled[0].split("\t"), roles):
        lists = any(begins_list(field) for line in filled[1:3] for field in line.split("\t"))
        return "conll" if not lists and all(len(line.split()) > 1 for line in filled[:-1]) else None
    if all("\t" in line for line in filled[:-1] or filled):
        return "parallel" if kinds == ["text", "text"] else "tsv"
    if any(all(mark in line for line in filled[:-1] or filled) for mark in (",", ";")):
        return "csv"
    return None


def _arrays(text: TextSource, arrays: Mapping[str, np.ndarray]) -> Table:
    """Build the table of a file of arrays: graphs, images, clips, or series."""
    if "graph_ptr" in arrays:
        return graph_table(text, dict(arrays))
    pixels = any(are_pixels(each) for each in arrays.values())
    return pixel_table(text, arrays) if pixels else array_table(text, arrays)


def _files(roles: Sequence[Role]) -> FileKind:
    """Return the kind of values in a folder: clips or sounds if a role takes them, else images."""
    if any(role.kind == "sound" for role in roles):
        return SOUNDS
    return CLIPS if any(role.clips for role in roles) else IMAGES


def _told_frames(source: str, table: Table, kind: FileKind) -> Table:
    """Add a note to a table of images if they are numbered like frames of clips."""
    if kind != IMAGES or not numbered_pictures(Path(source).expanduser()):
        return table
    note = (
        f"the images of {source} are numbered like frames of clips, but read as single images; "
        "data.processor=video reads clips"
    )
    return replace(table, notes=(*table.notes, note))


def _read(text: TextSource, kind: Format, columns: tuple[str, ...], roles: Sequence[Role]) -> Table:
    match kind:
        case "csv" | "tsv":
            return delimited(text, kind, columns)
        case "jsonl":
            return with_graphs(jsonl(text))
        case "conll":
            return conll(text)
        case "fasta":
            return fasta(text)
        case "squad":
            return squad(text)
        case "parallel":
            return _two_columns(text, columns, roles)


def _two_columns(text: TextSource, columns: tuple[str, ...], roles: Sequence[Role]) -> Table:
    """Read parallel texts from one TSV file; its first line is a header if it names the roles, two languages, or a
    requested column.
    """
    fields = [field.strip() for field in first_fields(text, "\t")]
    if len(fields) < 2:
        raise UserError(
            f"{text.name}: parallel texts in one file must be separated by a tab; or name two files: 'a.txt | b.txt'"
        )
    header = bool(set(columns) & set(fields)) or _names(fields, roles) or language_pair(fields)
    table = delimited(text, "tsv", columns, header)
    if header and set(columns) & set(fields):
        return table
    return Table(
        table.name,
        table.columns,
        table.parse,
        table.digest,
        {"text": table.columns[:2]},
        header=header,
        notes=table.notes,
    )


def _names(fields: list[str], roles: Sequence[Role]) -> bool:
    """Return True if the fields of the first line name at least one role, so that the line is a header."""
    names = {name.lower() for role in roles for name in (role.name, *role.names)}
    return any(field.strip().lower() in names for field in fields)


def _joined(source: str, data: spec.Data, option: str) -> Table:
    names = [name.strip() for name in source.split(SEPARATOR)]
    if len(names) != 2 or not all(names):
        raise UserError(f"{option}: {source!r} should name two parallel texts, such as 'a.txt | b.txt'")
    if data.format not in (None, "parallel"):
        raise UserError(
            f"{option}: {source!r} joins two texts, but the format is {data.format!r}; leave it out, or name one file"
        )
    first, second = (_text(name, option) for name in names)
    return cached((identity_of(names[0]), identity_of(names[1])), lambda: parallel(first, second))


def _text(source: str, option: str, names: Sequence[str] = ()) -> TextSource:
    path = Path(source).expanduser()
    if path.is_file():
        return TextSource.of_file(path, source)
    if path.is_dir():
        raise UserError(f"{option}: {source!r} is a directory; name one file")
    if path.exists():
        raise UserError(f"{option}: {source!r} is not a regular file, and a table is read more than once; name a file")
    folder = path.parent
    beside = [str(folder / other.name) for other in folder.iterdir() if other.is_file()] if folder.is_dir() else []
    if not folder.is_dir():
        raise UserError(f"{option}: there is no file {source!r}, and no folder {str(folder)!r}")
    also = " and no known table of that name" if names else ""
    raise UserError(f"{option}: there is no file {source!r}{also}; {_near(source, beside, names)}")


def _near(source: str, beside: Sequence[str], names: Sequence[str]) -> str:
    """Return a hint for a missing file: the nearest name of a file or named data set, else all names of data sets.

    File names are not listed, because a folder may hold thousands.
    """
    hint = nearest(source, [*beside, *names])
    if hint.startswith("did you mean") or not names:
        return hint if hint.startswith("did you mean") else "no similar name in its folder"
    return "known: " + ", ".join(names)
