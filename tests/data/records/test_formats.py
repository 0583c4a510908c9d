"""Every format, packed or not, told by its ending or by its lines, gives the rows that were written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.data.records.cases import ANSWER, CLASSIFY, SCORE, TAG, TRANSLATE, everything, in_order, read, write

from qkv.data.corpora.text import TextSource
from qkv.data.records.formats import detect_format
from qkv.data.records.model import Role
from qkv.data.records.readers.conll import conll
from qkv.data.records.readers.delimited import delimited
from qkv.data.records.readers.jsonl import jsonl
from qkv.data.records.readers.squad import squad
from qkv.data.records.table import Row, Table, lines
from qkv.system.errors import UserError

REVIEWS = [{"text": f"review, the \"{i}\"th\nof 'many'", "label": "good" if i % 3 else "bad"} for i in range(9)]
PLAIN = [{"text": f"review {i}", "label": "good" if i % 3 else "bad"} for i in range(9)]
SENTENCES = [{"words": ["Ann", "met", "Bo", str(i)], "tags": ["B-PER", "O", "B-PER", "O"]} for i in range(3)]
PAIRS = [{"source": f"a house {i}", "target": f"ein Haus {i}"} for i in range(4)]
CONTEXT = "Ann lives in Rome. Bo lives in Oslo, not in Rome."
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": f"T{i}",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": f"{i}a",
                            "question": "Where does Ann live?",
                            "answers": [{"text": "Rome", "answer_start": 13}],
                        },
                        {
                            "id": f"{i}b",
                            "question": "And Cy?",
                            "is_impossible": True,
                            "answers": [],
                            "plausible_answers": [{"text": "Oslo", "answer_start": 31}],
                        },
                    ],
                }
            ],
        }
        for i in range(3)
    ],
}
QUESTIONS = [
    {"context": CONTEXT, "id": f"{i}{letter}", "question": question, "answers": answers}
    for i in range(3)
    for letter, question, answers in (
        ("a", "Where does Ann live?", [{"text": "Rome", "start": 13}]),
        ("b", "And Cy?", []),
    )
]


def table(rows: list[dict[str, str]], **options: Any) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), **options)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def tagged(separator: str, between: str = "\n") -> str:
    sentences = (zip(row["words"], row["tags"], strict=True) for row in SENTENCES)
    return between.join("".join(f"{separator.join(pair)}\n" for pair in pairs) for pairs in sentences)


def json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


FILES: dict[str, tuple[str, str, tuple[Role, ...], list[dict[str, Any]]]] = {
    "comma": ("a.csv", table(REVIEWS), CLASSIFY, REVIEWS),
    "semicolon": ("a.csv", table(REVIEWS, delimiter=";"), CLASSIFY, REVIEWS),
    "all quoted": ("a.csv", table(REVIEWS, quoting=csv.QUOTE_ALL, lineterminator="\n"), CLASSIFY, REVIEWS),
    "byte order mark": ("a.csv", "\ufeff" + table(REVIEWS), CLASSIFY, REVIEWS),
    "csv without an ending": ("reviews", table(PLAIN), CLASSIFY, PLAIN),
    "tabs": ("a.tsv", table(PLAIN, delimiter="\t"), CLASSIFY, PLAIN),
    "tabs and quotes": ("a.tsv", table(REVIEWS, delimiter="\t"), CLASSIFY, REVIEWS),
    "tsv called txt": ("a.txt", table(PLAIN, delimiter="\t"), CLASSIFY, PLAIN),
    "json lines": ("a.jsonl", json_lines(REVIEWS), CLASSIFY, REVIEWS),
    "json lines with blank ones": ("a.jsonl", json_lines(REVIEWS).replace("\n", "\n\n"), CLASSIFY, REVIEWS),
    "json lines called json": ("a.json", json_lines(REVIEWS), CLASSIFY, REVIEWS),
    "json list": ("a.json", json.dumps(REVIEWS, indent=1), CLASSIFY, REVIEWS),
    "json list in one line": ("a.jsonl", json.dumps(REVIEWS), CLASSIFY, REVIEWS),
    "json without an ending": ("a", json_lines(REVIEWS), CLASSIFY, REVIEWS),
    "json lists of words": ("a.jsonl", json_lines(SENTENCES), TAG, SENTENCES),
    "conll by tabs": ("a.conll", tagged("\t"), TAG, SENTENCES),
    "conll by blanks": ("a.bio", tagged("  "), TAG, SENTENCES),
    "conll with a lone tab between": ("a.conll", tagged("\t", "\t\n"), TAG, SENTENCES),
    "conll of four columns": ("a.conll", tagged(" NNP X "), TAG, SENTENCES),
    "conll with documents": ("a.conll", "-DOCSTART- O\n\n" + tagged(" ", "\n\n-DOCSTART- O\n"), TAG, SENTENCES),
    "conll with comments": ("a.conll", "# one\n" + tagged("\t", "\n# text = more\n"), TAG, SENTENCES),
    "conll called tsv": ("a.tsv", tagged("\t"), TAG, SENTENCES),
    "conll called txt": ("a.txt", tagged(" "), TAG, SENTENCES),
    "squad": ("a.json", json.dumps(SQUAD), ANSWER, QUESTIONS),
    "squad in many lines": ("a.json", json.dumps(SQUAD, indent=2), ANSWER, QUESTIONS),
    "pairs without a header": (
        "a.tsv",
        "".join(f"{row['source']}\t{row['target']}\n" for row in PAIRS),
        TRANSLATE,
        PAIRS,
    ),
    "pairs under languages": (
        "a.tsv",
        "en\tde\n" + "".join(f"{row['source']}\t{row['target']}\n" for row in PAIRS),
        TRANSLATE,
        PAIRS,
    ),
    "pairs under their names": ("a.tsv", table(PAIRS, delimiter="\t"), TRANSLATE, PAIRS),
    "pairs called txt, third column": (
        "a.txt",
        "".join(f"{row['source']}\t{row['target']}\tx\n" for row in PAIRS),
        TRANSLATE,
        PAIRS,
    ),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_reads_back(case: str, packed: bool, tmp_path: Path) -> None:
    name, content, roles, rows = FILES[case]
    records = read(write(tmp_path / name, content, packed), roles)
    assert everything(records) == sorted(rows, key=in_order)
    assert records.bad == ()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_parallel_texts_read_line_by_line(packed: bool, tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", "".join(row["source"] + "\n" for row in PAIRS), packed)
    target = write(tmp_path / "a.de", "\r\n".join(row["target"] for row in PAIRS), packed)
    assert everything(read(f"{source} | {target}", TRANSLATE)) == PAIRS
    swapped = everything(read(f"{source}|{target}", TRANSLATE, columns={"source": "2"}))
    assert swapped == sorted(({"source": row["target"], "target": row["source"]} for row in PAIRS), key=in_order)


def test_a_line_separator_of_unicode_ends_no_line(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a", "one\u2028line\x85\nb\n"), write(tmp_path / "b", "eine\x0bZeile\nb")
    assert {"source": "one\u2028line\x85", "target": "eine\x0bZeile"} in everything(
        read(f"{source} | {target}", TRANSLATE)
    )


def test_parallel_texts_of_different_length_give_both_counts(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a", "x\n" * 1200), write(tmp_path / "b", "y\n" * 1199)
    with pytest.raises(UserError) as caught:
        read(f"{source} | {target}", TRANSLATE)
    assert (
        str(caught.value)
        == f"{source} has 1,200 lines and {target} has 1,199; parallel texts need the same number, line by line"
    )


CELLS = st.text(st.characters(codec="utf-8"), max_size=12)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=6),
    delimiter=st.sampled_from(",;\t"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_table_of_strings_reads_back(
    rows: list[tuple[str, str, str]], delimiter: str, quoting: Any, end: str
) -> None:
    # Without quotes, the writer of Python 3.11 leaves a carriage return bare, which then is part of the line's end.
    assume(end == "\r\n" or quoting != csv.QUOTE_MINIMAL or "\r" not in "".join(map("".join, rows)))
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(
        [("first", "second", "third"), *rows]
    )
    found = list(delimited(TextSource.of_string(file.getvalue(), "x"), "csv").rows)
    assert [tuple(row.values.values()) for row in found if isinstance(row, Row)] == rows


@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.none() | st.integers() | CELLS, min_size=1), min_size=1, max_size=6
    )
)
def test_any_objects_read_back_from_lines_and_from_a_list(rows: list[dict[str, Any]]) -> None:
    for content in (json_lines(rows), json.dumps(rows, indent=2), json.dumps(rows)):
        assert [row.values for row in jsonl(TextSource.of_string(content, "x")).rows if isinstance(row, Row)] == rows


@given(content=st.text(st.sampled_from("a\r\n\u2028é"), max_size=30))
def test_lines_are_those_between_line_feeds(content: str) -> None:
    found = list(lines(TextSource.of_string(content, "x")))
    assert "".join(found) == content
    assert [line.rstrip("\n") for line in found] == (content.removesuffix("\n").split("\n") if content else [])


def test_lines_go_on_from_block_to_block() -> None:
    content = [f"{'é' * 100_000}{i}\n" for i in range(5)]
    assert list(lines(TextSource.of_string("".join(content), "x"))) == content


@pytest.mark.parametrize(
    ("reader", "content", "expected"),
    [
        (partial(delimited, format="csv"), 'text,label\n"two\nlines",1\n\nx,1\n"y",2\n', [2, 5, 6]),
        (jsonl, '{"a": 1}\n\n{"a": 2}\n', [1, 3]),
        (jsonl, json.dumps([{"text": "a", "label": 1}] * 3, indent=0), [2, 6, 10]),
        (conll, "# c\n-DOCSTART-\tO\n\na\tO\nb\tO\n\n\t\nc\tO\n", [4, 8]),
        (squad, json.dumps(SQUAD), [1] * 6),
    ],
)
def test_the_lines_of_rows_are_counted(
    reader: Callable[[TextSource], Table], content: str, expected: list[int]
) -> None:
    assert [row.line for row in reader(TextSource.of_string(content, "x")).rows if isinstance(row, Row)] == expected


def test_the_line_of_a_question_is_that_of_its_id() -> None:
    content = json.dumps(SQUAD, indent=0)
    ids = [number for number, line in enumerate(content.split("\n"), 1) if line.startswith('"id"')]
    assert [row.line for row in squad(TextSource.of_string(content, "x")).rows if isinstance(row, Row)] == ids
    assert len(ids) == 6


def test_a_long_cell_is_no_limit(tmp_path: Path) -> None:
    long = "word " * 60_000
    source = write(tmp_path / "a.csv", table([{"text": long, "label": "a"}, {"text": "b", "label": "b"}]))
    assert {"text": long, "label": "a"} in everything(read(source, CLASSIFY))


@pytest.mark.parametrize(
    ("name", "content", "roles", "expected"),
    [
        ("notes.txt", "Just a text.\nOf two lines, no table\n", CLASSIFY, None),
        ("notes.txt", "One word.\nAnd more words.\n", TAG, "conll"),
        ("notes.txt", "Word\nMore words.\n", TAG, None),
        ("A.CSV.GZ", "a;b\n", CLASSIFY, "csv"),
        ("a.json", '{"data": 1}\n', CLASSIFY, "jsonl"),
        ("a.tsv", "words\ttags\na b\tO O\n", TAG, "tsv"),
    ],
)
def test_the_format_is_told(name: str, content: str, roles: tuple[Role, ...], expected: str | None) -> None:
    assert detect_format(TextSource.of_string(content, name), roles) == expected


def test_a_format_that_is_given_needs_no_ending(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "text,label\na, b\nc, d\n")
    assert len(everything(read(source, CLASSIFY, format="csv"))) == 2


def test_numbers_and_lists_of_json_become_what_the_role_is(tmp_path: Path) -> None:
    rows = [{"text": ["One.", "Two."], "label": 3}, {"text": 12, "label": True}, {"text": "x", "label": " a "}]
    source = write(tmp_path / "a.jsonl", json_lines(rows))
    assert everything(read(source, CLASSIFY)) == [
        {"text": "One. Two.", "label": "3"},
        {"text": "x", "label": "a"},
        {"text": "12", "label": "true"},
    ]
    source = write(tmp_path / "b.csv", "text,score\na, 1.5 \nb,-2e3\n")
    assert everything(read(source, SCORE)) == [{"text": "b", "number": -2000.0}, {"text": "a", "number": 1.5}]
    source = write(tmp_path / "c.csv", "tokens,ner_tags\nAnn ran,P O\nBo sat,P O\n")
    assert everything(read(source, TAG)) == [
        {"words": ["Ann", "ran"], "tags": ["P", "O"]},
        {"words": ["Bo", "sat"], "tags": ["P", "O"]},
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"text": ["Rome", "Oslo"], "answer_start": [13, 31]}, [("Rome", 13), ("Oslo", 31)]),
        ({"text": [], "answer_start": []}, []),
        ({"text": "Oslo", "answer_start": 31}, [("Oslo", 31)]),
        ([{"text": "Rome", "start": 44}], [("Rome", 44)]),
        ("Rome", [("Rome", 13)]),
        (["Bo"], [("Bo", 19)]),
        ([], []),
    ],
)
def test_answers_are_written_in_several_ways(answers: Any, expected: list[tuple[str, int]], tmp_path: Path) -> None:
    row = {"context": CONTEXT, "question": "Where?", "answers": answers}
    found = everything(read(write(tmp_path / "a.jsonl", json_lines([row, row])), ANSWER))
    assert [(answer["text"], answer["start"]) for answer in found[0]["answers"]] == expected
