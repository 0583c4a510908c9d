"""Rows that cannot be used are counted, said with their lines, and skipped or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.records.cases import ANSWER, CLASSIFY, SCORE, TAG, TRANSLATE, everything, read, write

from qkv.data.records.formats import table_of
from qkv.data.records.model import Role
from qkv.spec.data import Data
from qkv.system.errors import UserError

GOOD = "".join(f"good {i},{'ab'[i % 2]}\n" for i in range(10))


def bad_of(records: Any) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in records.bad]


@pytest.mark.parametrize(
    ("name", "content", "roles", "expected"),
    [
        (
            "a.csv",
            "text,label\nx\nx,a,b\n,a\nx,\n  ,a\n" + GOOD,
            CLASSIFY,
            [
                (2, "1 field instead of 2"),
                (3, "3 fields instead of 2"),
                (4, "text is empty"),
                (5, "label is empty"),
                (6, "text is empty"),
            ],
        ),
        (
            "a.csv",
            'text,label\n"a"b,c\n"a\nb"c,d\n' + GOOD,
            CLASSIFY,
            [(2, "',' expected after '\"'"), (3, "',' expected after '\"' (up to line 4)")],
        ),
        (
            "a.csv",
            "text,score\na,1\nb,one\nc,nan\nd,1e999\ne,1_000\nf,-1e308\ng,3\nh,1e100\ni,5\nj,6\nk,7\n",
            SCORE,
            [
                (3, "number is 'one', not a finite number"),
                (4, "no number"),
                (5, "number is '1e999', not a finite number"),
                (6, "number is '1_000', not a finite number"),
                (7, "number is '-1e308', which exceeds the limit of 1e+100; use another unit"),
            ],
        ),
        (
            "a.jsonl",
            '{"text": "a"\n[1]\n{"text": "a"}\n{"text": null, "label": 1}\n'
            '{"text": {"a": 1}, "label": 1}\n{"text": "\\ud800", "label": 1}\n' + '{"text": "a", "label": 1}\n' * 6,
            CLASSIFY,
            [
                (1, "not JSON (Expecting ',' delimiter at column 13)"),
                (2, "not a JSON object"),
                (3, "no label"),
                (4, "no text"),
                (5, "text is an object, not a string"),
                (6, "text contains half a surrogate pair, which is not a character"),
            ],
        ),
        (
            "a.conll",
            "a\tO\nb\n\na\tO\n\nc\tO\tO\nd\tO\n\ne\t\n\nf\tO\n\ng\tO\n\nh\tO\n",
            TAG,
            [(2, "1 field instead of 2"), (6, "3 fields instead of 2"), (9, "field 2 is empty")],
        ),
        (
            "a.jsonl",
            '{"words": ["a", "b"], "tags": ["O"]}\n{"words": [], "tags": []}\n'
            '{"words": ["a", " "], "tags": ["O", "O"]}\n'
            '{"words": 1, "tags": 2}\n' + '{"words": ["a"], "tags": ["O"]}\n' * 4,
            TAG,
            [
                (1, "2 words but 1 tags"),
                (2, "no words"),
                (3, "one of the words is empty"),
                (4, "words is a number, not a list"),
            ],
        ),
        ("a.tsv", "a\tb\nc\n\td\ne\tf\ng\th\n", TRANSLATE, [(2, "1 field instead of 2"), (3, "source is empty")]),
    ],
)
def test_bad_rows_are_said_with_their_lines(
    name: str, content: str, roles: tuple[Role, ...], expected: list[tuple[int, str]], tmp_path: Path
) -> None:
    source = write(tmp_path / name, content)
    records = read(source, roles)
    assert bad_of(records) == expected
    assert {row.file for row in records.bad} == {source}
    total, empty = len(everything(records)) + len(expected), sum(bool(row.missing) for row in records.bad)
    skipped = len(expected) - empty
    assert any(
        note.startswith(f"{skipped} of {total} rows of {source} {'was' if skipped == 1 else 'were'} skipped: line ")
        for note in records.notes
    )
    assert sum(int(note.split()[0]) for note in records.notes if "left out (first: line" in note) == empty


@pytest.mark.parametrize(
    ("name", "content", "notes"),
    [
        (
            "a.csv",
            "text,label\nx,a\n,a\ny,NA\nz,\nNone,None\nNaN,b\nw,a\n",
            [
                "2 of 7 rows of {} have no text and were left out (first: line 3)",
                "2 of 7 rows of {} have no label and were left out (first: line 4)",
            ],
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": "NA"}\n{"text": "y", "label": NaN}\n{"text": "nan", "label": 1}\n{"text": "z"}\n'
            '{"text": [], "label": 1}\n',
            [
                "2 of 5 rows of {} have no label and were left out (first: line 2)",
                "1 of 5 rows of {} has no text and was left out (first: line 5)",
            ],
        ),
        (
            "a.csv",
            "text,label\n" + "x,\n" * 20 + "y,a\nz,b\n",
            ["20 of 22 rows of {} have no label and were left out (first: line 2)"],
        ),
    ],
)
def test_empty_cells_are_counted_and_left_out(name: str, content: str, notes: list[str], tmp_path: Path) -> None:
    """NaN is an empty cell in CSV, and a text in JSON, where it can be told from a number."""
    source = write(tmp_path / name, content)
    records = read(source, CLASSIFY)
    assert [note for note in records.notes if "left out" in note] == [note.format(source) for note in notes]
    assert all(row["label"] in ("a", "b", "NA", "1", "None") for row in everything(records))
    assert len(everything(records)) + len(records.bad) == content.count("\n") - name.endswith("csv")


def test_a_table_without_any_label_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,label\nx,\ny,\n")
    with pytest.raises(UserError, match=r"no row of .* can be used: 2 of 2 rows .* have no label"):
        read(source, CLASSIFY, columns={"text": "text", "label": "label"})


def test_the_first_bad_rows_are_refused_in_one_sentence(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,label\nx\n,a\nx,\nx,a,b\n" + GOOD)
    with pytest.raises(UserError) as caught:
        read(source, CLASSIFY, bad_rows="refuse")
    assert str(caught.value) == (
        f"4 of 14 rows of {source} cannot be used: line 2: 1 field instead of 2; line 3: text is empty; "
        "line 4: label is empty; and 1 more; correct them, or skip them with data.bad_rows=skip"
    )


@pytest.mark.parametrize(("bad", "refused"), [(10, False), (11, True)])
def test_more_than_half_is_always_refused(bad: int, refused: bool, tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,label\n" + "x\n" * bad + GOOD)
    if refused:
        with pytest.raises(
            UserError,
            match=r"11 of 21 rows of .* cannot be used, more than half: line 2: 1 field instead of 2; .*data\.columns",
        ):
            read(source, CLASSIFY)
    else:
        assert len(read(source, CLASSIFY).bad) == 10


def test_bad_rows_of_every_file_are_counted(tmp_path: Path) -> None:
    train, held = (
        write(tmp_path / "a.csv", "text,label\nx\n" + GOOD),
        write(tmp_path / "b.csv", "text,label\n" + GOOD + ",a\n"),
    )
    records = read(train, CLASSIFY, validation=held)
    assert [(row.file, row.line) for row in records.bad] == [(train, 2), (held, 12)]
    assert f"1 of 11 rows of {train} was skipped: line 2: 1 field instead of 2" in records.notes
    assert f"1 of 11 rows of {held} has no text and was left out (first: line 12)" in records.notes


def test_an_answer_at_the_wrong_place_is_moved_to_the_nearest_one(tmp_path: Path) -> None:
    context = "Rome. Oslo. Rome."

    def row(*answers: tuple[str, int | None]) -> dict[str, Any]:
        listed = [{"text": text, "answer_start": start} for text, start in answers]
        return {"context": context, "question": "?", "answers": listed}

    rows = [
        row(("Rome", 0)),
        row(("Rome", 11)),
        row(("Oslo", -3)),
        row(("Paris", 0)),
        row(("Paris", 0), ("Oslo", 6)),
        row(("Oslo", None)),
    ]
    records = read(write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)), ANSWER)
    assert bad_of(records) == [(4, "the answer 'Paris' is not in the context")]
    found = sorted((answer["text"], answer["start"]) for row in everything(records) for answer in row["answers"])
    assert found == [("Oslo", 6), ("Oslo", 6), ("Oslo", 6), ("Rome", 0), ("Rome", 12)]
    said = "\n".join(records.notes)
    assert ": 2 answers were not at their stated start and were moved to their nearest occurrence" in said
    assert ": 1 questions lost an answer that is not in the context but kept another" in said
    assert ": 1 answers had no start and were placed at their first occurrence" in said


def test_outer_blanks_of_texts_are_kept_and_said(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,label\n a,x \nb\t,x\nc,x\n")
    records = read(source, CLASSIFY)
    assert [row["text"] for row in everything(records)] == sorted([" a", "b\t", "c"], key=repr)
    assert {row["label"] for row in everything(records)} == {"x"}
    assert f"{source}: 2 texts begin or end with white space, which is kept" in records.notes


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "", "data.source: '{}' is empty"),
        ("a.csv", "\n \n", "data.source: '{}' is empty"),
        ("a.csv", "text,label\n", "{} has no rows after its header"),
        (
            "a.csv",
            "text,label\nx,a\n",
            "{}: there is one row; at least two are needed, one to train on and one to hold out",
        ),
        ("a.csv", 'text,label\nx,"a\ny,b\n', "{}: a quote that opens in the record of line 2 is never closed"),
        (
            "a.csv",
            "text,text,label\nx,a,b\n",
            "{}: the header in line 1 has two columns 'text'; give each column its own name",
        ),
        ("a.csv", 'te"xt,"label"x\n', "{}: the header in line 1 cannot be read: ',' expected after '\"'"),
        (
            "a.jsonl",
            "hello\n",
            "{} holds no JSON object with keys: line 1 is not JSON (Expecting value at column 1); "
            "write one object per line, or a list of objects",
        ),
        ("a.json", '[{"text": "a"},\n {"text": ]', "{}: the list is broken in line 2: Expecting value at column 11"),
        ("a.json", "[]", "{} is empty"),
        (
            "a.csv",
            "text,label\rx,a\ry,b\r",
            "{}: the header in line 1 cannot be read: a carriage return outside quotes",
        ),
        (
            "a.jsonl",
            '{"a": ' + "1" * 5000 + "}",
            "{} holds no JSON object with keys: line 1 is not JSON (a number has too many digits); "
            "write one object per line, or a list of objects",
        ),
        (
            "a.conll",
            "w" * 500,
            f"{{}}: CoNLL needs a token and a tag per line, and '{'w' * 37}...{'w' * 18}' has one field",
        ),
        ("a.conll", "word\nword\n", "{}: CoNLL needs a token and a tag per line, and 'word' has one field"),
        (
            "a.txt",
            "Some words\nand more\n",
            "data.source: the format of '{}' is clear neither from its extension nor from its first lines; "
            "name it with data.format, one of csv, tsv, jsonl, conll, squad, parallel, fasta",
        ),
        (
            "a.csv",
            b"text,label\nx,\xe9\n",
            "{} is not UTF-8 text: byte 0xe9 at offset 13 (line 2): invalid continuation byte; "
            "convert the file to UTF-8",
        ),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_sentence(
    name: str, content: str | bytes, sentence: str, tmp_path: Path
) -> None:
    source = write(tmp_path / name, content)
    with pytest.raises(UserError) as caught:
        read(source, CLASSIFY)
    assert str(caught.value) == sentence.replace("{}", source)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "{} is not SQuAD: KeyError at 'context'; it needs"),
        ('{"data": [{"paragraphs": [\n}', "{}:2: not JSON: Expecting value at column 1"),
        ('{"paragraphs": []}', "{} is not SQuAD: KeyError at 'data'; it needs"),
        ('{"data": [{"paragraphs": []}]}', "{} has no rows"),
    ],
)
def test_a_broken_squad_file_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.json", content)
    with pytest.raises(UserError) as caught:
        read(source, ANSWER, format="squad")
    assert str(caught.value).startswith(sentence.replace("{}", source))


def test_where_no_format_can_be_given_the_endings_are_named(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "Some words\nand more\n")
    with pytest.raises(UserError, match=r"^--data: .* first lines; end its name in \.csv, \.tsv, "):
        table_of(source, Data(source=source), CLASSIFY, "--data")
