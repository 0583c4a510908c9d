"""Labels as tables hold them: printed lists, columns of 0 and 1, spellings that differ, and columns that are none."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.records.cases import CLASSIFY, LABEL, TAG, TEXT, everything, read, write

from qkv.data.records.lists import printed_list
from qkv.data.records.model import Role
from qkv.data.records.values import Unusable, label_set
from qkv.system.errors import UserError

LABELS = Role("labels", "labels", ("labels", "topics", "genres"))
SEVERAL = (TEXT, LABELS)
NAMES = st.lists(st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), min_size=1), max_size=4)


def table(columns: dict[str, list[Any]], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue()


def texts(count: int) -> list[str]:
    draw, words = random.Random(0), ("the", "lamp", "was", "warm", "and", "bright", "on")
    return [" ".join(draw.choices(words, k=7)) + f" {i}" for i in range(count)]


@given(names=NAMES)
def test_lists_printed_by_python_are_read_back(names: list[str]) -> None:
    assert printed_list(repr(names)) == names
    assert printed_list(f" {names!r}\n") == names
    if names:
        assert printed_list(repr(tuple(names))) == names or len(names) == 1
        assert sorted(printed_list(repr(set(names))) or []) == sorted(set(names))


@given(names=st.lists(st.from_regex(r"[a-z][a-z -]{0,9}", fullmatch=True), min_size=1, max_size=5))
def test_lists_printed_by_numpy_are_read_back(names: list[str]) -> None:
    assert printed_list(str(np.array(names))) == names


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("['a', 'b']", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ("['a' 'b']", ["a", "b"]),
        ('[\'it\\\'s\', "say \\"no\\""]', ["it's", 'say "no"']),
        ("[a, b c]", ["a", "b c"]),
        ("('a', 'b')", ["a", "b"]),
        ("{'a'}", ["a"]),
        ("[1, 2]", ["1", "2"]),
        ("[]", []),
        ("set()", []),
        ("a;b ; a", ["a", "b"]),
        ("(other)", ["(other)"]),
    ],
)
def test_a_cell_of_several_labels(cell: str, labels: list[str]) -> None:
    assert label_set(cell, "labels", ";") == labels


@pytest.mark.parametrize("cell", ["['a', 'b'", "['a'b']", "['a', 'b' ...", "[[1], 'a']"])
def test_a_damaged_list_is_refused(cell: str) -> None:
    with pytest.raises(Unusable, match=r"labels is .*, not a"):
        label_set(cell, "labels", ";")


@given(data=st.data())
def test_columns_of_0_and_1_are_the_labels_of_a_row(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = data.draw(st.lists(st.sampled_from(["toxic", "insult", "threat", "spam", "a b"]), min_size=2, unique=True))
    no, yes = data.draw(st.sampled_from([("0", "1"), ("0.0", "1.0"), ("False", "True"), ("no", "yes"), ("", "x")]))
    draw, count = random.Random(data.draw(st.integers(0, 99))), 20
    marks = {name: [draw.choice([no, yes]) for _ in range(count)] for name in names}
    source = table({"id": list(range(count)), "remark": texts(count), **marks})
    records = read(write(tmp_path_factory.mktemp("flags") / "a.csv", source), SEVERAL)
    expected = {text: [name for name in names if marks[name][i] == yes] for i, text in enumerate(texts(count))}
    assert {row["text"]: row["labels"] for row in everything(records)} == expected
    assert any("columns of 0 and 1" in note and "(guessed)" in note for note in records.notes)


def test_columns_of_labels_are_named_kept_and_checked(tmp_path: Path) -> None:
    marks = {"toxic": ["0", "1"] * 10, "rude": ["1", "0"] * 10, "long": ["1"] * 20}
    source = write(tmp_path / "a.csv", table({"remark": texts(20), **marks}))
    named = read(source, SEVERAL, columns={"labels": "toxic,rude"})
    assert {tuple(row["labels"]) for row in everything(named)} == {("toxic",), ("rude",)}
    guessed = read(source, SEVERAL)
    assert everything(read(source, SEVERAL, columns=guessed.columns)) == everything(guessed)
    with pytest.raises(UserError, match=r"data\.columns\.labels: .* has no column 'lng'"):
        read(source, SEVERAL, columns={"labels": "toxic..lng"})
    marks["rude"][2:6] = ["-1", "-1", "maybe", "2"]
    partly = read(write(tmp_path / "b.csv", table({"remark": texts(20), **marks})), SEVERAL, columns=guessed.columns)
    assert sorted(bad.reason for bad in partly.bad) == [
        "no labels",
        "no labels",
        "rude is '2', but a column of a label holds only 0 and 1",
        "rude is 'maybe', but a column of a label holds only 0 and 1",
    ]
    with pytest.raises(UserError, match="for several labels of one text, use the task multilabel"):
        read(source, CLASSIFY)


def test_lists_of_words_and_tags_are_read_from_cells(tmp_path: Path) -> None:
    words = [["Eva", "lives", "in", "Rome", str(i)] for i in range(12)]
    tags = [["B-PER", "O", "O", "B-LOC", "O"] for _ in words]
    for ending, delimiter in (("csv", ","), ("tsv", "\t")):
        source = write(tmp_path / f"a.{ending}", table({"sentence": words, "entities": tags}, delimiter))
        records = read(source, TAG)
        assert records.columns == {"words": "sentence", "tags": "entities"}
        assert sorted(row["words"] for row in everything(records)) == sorted(words)
        assert all(row["tags"] == tags[0] for row in everything(records))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["good"] * 6 + ["Good"] * 2 + ["bad"] * 4, "labels differ only in case or spacing: 'good' (6) and 'Good' (2)"),
        (["very good"] * 6 + ["verygood"] * 2 + ["bad"] * 4, "'very good' (6) and 'verygood' (2)"),
        (["ﬁne"] * 6 + ["fine"] * 2 + ["bad"] * 4, "'ﬁne' (6) and 'fine' (2)"),
        (["good"] * 6 + ["bad"] * 6, ""),
        (["good"] * 6 + ["bad "] * 3 + ["bad"] * 3, "3 labels begin or end with white space, which is removed"),
    ],
)
def test_labels_that_are_nearly_the_same_are_told_and_kept(labels: list[str], told: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table({"text": texts(12), "label": labels}))
    records = read(source, CLASSIFY)
    assert {row["label"] for row in everything(records)} == {label.strip() for label in labels}
    found = [note for note in records.notes if "differ only" in note or "white space" in note]
    assert len(found) == bool(told)
    assert all(told in note for note in found)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"when": [f"2023-01-{i:02}" for i in range(1, 21)], "close": list(range(20, 40))},
            "no column looks like text",
        ),
        ({"key9": [f"ID_{i:04}" for i in range(20)], "kind": ["a", "b"] * 10}, "no column looks like"),
        (
            {"page": [f"https://a.org/{i * 7}" for i in range(20)], "kind": ["a", "b"] * 10},
            "no column looks like",
        ),
        ({"remark": texts(20), "language": ["en"] * 20}, "no column looks like label"),
        ({"remark": texts(20), "ref": [f"x{i * 37 % 101}y" for i in range(20)]}, "no column looks like label"),
        ({"remark": texts(20), "rating": [f"{i * 37 % 101 + 0.5}" for i in range(20)]}, "no column looks like label"),
        ({"Unnamed: 0": texts(20), "label": ["a", "b"] * 10}, "no column looks like text"),
    ],
)
def test_columns_whose_content_says_otherwise_are_not_guessed(
    columns: dict[str, list[Any]], sentence: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.csv", table(columns))
    with pytest.raises(UserError, match=sentence):
        read(source, (TEXT, LABEL))
    first, second = columns
    assert read(source, (TEXT, LABEL), columns={"text": first, "label": second}).columns["text"] == first


def test_a_name_is_not_believed_where_another_column_holds_the_texts(tmp_path: Path) -> None:
    columns = {"comment": [f"C-{i}" for i in range(20)], "said": texts(20), "label": ["a", "b"] * 10}
    assert read(write(tmp_path / "a.csv", table(columns)), CLASSIFY).columns["text"] == "said"
    del columns["said"]
    assert read(write(tmp_path / "b.csv", table(columns)), CLASSIFY).columns["text"] == "comment"


def test_identifiers_are_longer_than_titles_and_still_no_texts(tmp_path: Path) -> None:
    ids = [f"{i:08x}-0000-4000-8000-{i:012x}" for i in range(20)]
    columns = {"ref": ids, "title": [f"warm soup {i}" for i in range(20)], "kind": ["a", "b"] * 10}
    assert read(write(tmp_path / "a.csv", table(columns)), CLASSIFY).columns == {"text": "title", "label": "kind"}
