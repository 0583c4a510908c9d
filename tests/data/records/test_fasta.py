"""FASTA files are tables of sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.choosing.automatic_task import automatic_task
from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow, Role
from qkv.data.records.open import open_records
from qkv.data.records.readers.fasta import fasta
from qkv.spec.data import Data
from qkv.system.errors import UserError

CONTENT = """\
>P1 Cell membrane OS=Homo sapiens OX=9606
mkv
LL*

>P2
; a comment
ACDE
>P3 Nucleus
>P4 Nucleus OX=1
MK1
"""


def test_headers_and_sequences() -> None:
    table = fasta(TextSource.of_string(CONTENT, "a.fasta"))
    assert table.columns == ("id", "description", "sequence", "OS", "OX")
    first, second, third, fourth = table.rows
    assert not isinstance(first, BadRow)
    assert first.values == {
        "id": "P1",
        "description": "Cell membrane",
        "sequence": "MKVLL",
        "OS": "Homo sapiens",
        "OX": "9606",
    }
    assert (first.line, second.line) == (1, 5)
    assert not isinstance(second, BadRow)
    assert second.values["sequence"] == "ACDE"
    assert isinstance(third, BadRow)
    assert third.reason == "there is no sequence after the header"
    assert isinstance(fourth, BadRow)
    assert fourth.reason == "'1' is not a letter of a sequence"


@pytest.mark.parametrize("name", ["a.fasta", "a.fa", "sequences"])
def test_the_format_is_recognised_and_the_sequence_is_the_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("".join(f">s{i} {'in' if i % 2 else 'out'}\nMKV{'A' * i}\n" for i in range(20)))
    roles = (Role("text", "text", ("text", "sequence")), Role("label", "label", ("label",)))
    records = open_records(Data(source=str(path), columns={"label": "description"}), roles)
    assert records.columns == {"text": "sequence", "label": "description"}
    assert {row["label"] for row in records.splits["train"]} == {"in", "out"}


def test_sequences_are_read_by_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.write_text("".join(f">s{i} {'in' if i % 2 else 'out'}\n{'MKVLA' * 8}\n" for i in range(20)))
    recipe = automatic_task("classification", {"source": str(path), "columns": {"label": "description"}})
    assert recipe.data.tokenizer.kind == "characters"


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(UserError, match="begins with 'MKV', but a FASTA file begins with '>' and a name"):
        fasta(TextSource.of_string("MKV\n", "a.fasta"))
