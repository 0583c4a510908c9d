"""FASTA format: a header line that begins with ``>``, then a sequence of amino acids or nucleotides over any lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table, lines
from qkv.system.errors import UserError

_PAIR = re.compile(r"\b(\w+)=((?:(?!\s\w+=).)*)")
"""Field of a header, such as ``OS=Homo sapiens``; it ends before the next field."""
COLUMNS = ("id", "description", "sequence")


def fasta(text: TextSource) -> Table:
    """Read a FASTA file as a table with the columns ``id``, ``description``, ``sequence``, and one column per header
    field.

    ``>sp|P69905 Cytoplasm OX=9606``: the id is the first word, fields are NAME=value at the end of the header, and the
    description is the text between them. The lines of a sequence are joined without white space, in upper case, without
    a final ``*``. Raises ``UserError`` for a file that does not begin with a header.
    """
    first = next((line for line in lines(text) if line.strip()), "")
    if not first.startswith(">"):
        raise UserError(f"{text.name} begins with {first[:20].strip()!r}, but a FASTA file begins with '>' and a name")
    fields = dict.fromkeys(name for line in lines(text) if line.startswith(">") for name, _ in _PAIR.findall(line))
    columns = (*COLUMNS, *(name for name in fields if name not in COLUMNS))
    return Table(text.name, columns, lambda: _sequences(text), text.digest(), {"text": ("sequence",)})


def _sequences(text: TextSource) -> Iterator[Row | BadRow]:
    header, begin, parts = "", 0, list[str]()
    for number, line in enumerate(lines(text), 1):
        if line.startswith(">"):
            if header:
                yield _row(text, begin, header, parts)
            header, begin, parts = line[1:].strip() or "?", number, []
        elif not line.startswith(";"):
            parts.append("".join(line.split()))
    if header:
        yield _row(text, begin, header, parts)


def _row(text: TextSource, line: int, header: str, parts: list[str]) -> Row | BadRow:
    sequence = "".join(parts).upper().removesuffix("*")
    if not sequence:
        return BadRow(text.name, line, "there is no sequence after the header", "text")
    if wrong := re.search(r"[^A-Z*.-]", sequence):
        return BadRow(text.name, line, f"{wrong.group()!r} is not a letter of a sequence")
    name, _, rest = header.partition(" ")
    pairs = {pair: value.strip() for pair, value in _PAIR.findall(rest)}
    description = _PAIR.sub("", rest).strip()
    return Row(line, {**pairs, "id": name, "description": description, "sequence": sequence})
