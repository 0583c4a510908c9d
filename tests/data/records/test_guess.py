"""Columns are told by name and content; in doubt an error says which there are and how to choose."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.data.records.cases import ANSWER, CLASSIFY, LABEL, SCORE, TAG, TEXT, TRANSLATE, everything, read, write

from qkv.data.records.model import Role
from qkv.system.errors import UserError

WORDS = "the film was long and the end of it came as no surprise to anybody who had seen the first one"
LABELS = ("good", "bad", "so-so")
PAIR = (
    Role("premise", "text", ("premise", "sentence1")),
    Role("hypothesis", "text", ("hypothesis", "sentence2")),
    LABEL,
)


def cell(sort: str, i: int, generator: random.Random) -> str:
    """A value as such columns hold them."""
    match sort:
        case "id":
            return str(1000 + i)
        case "text":
            return " ".join(generator.choices(WORDS.split(), k=generator.randint(8, 20))) + f" {i}"
        case "short":
            return " ".join(generator.choices(WORDS.split(), k=2)) + f" {i}"
        case "label":
            return generator.choice(LABELS)
        case "stars":
            return str(generator.randint(1, 5))
        case "date":
            return f"20{i % 30:02d}-0{1 + i % 9}-{10 + i % 19}T{i:05d}"
        case "url":
            return f"https://example.org/{i:08d}"
        case _:
            return f"{generator.random() * 100:.3f}"


def table(columns: dict[str, str], rows: int = 60, header: bool = True) -> str:
    generator = random.Random(0)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerows([list(columns)] * header)
    writer.writerows([cell(sort, i, generator) for sort in columns.values()] for i in range(rows))
    return file.getvalue()


@pytest.mark.parametrize(
    ("columns", "roles", "expected"),
    [
        ({"review": "text", "stars": "stars"}, CLASSIFY, ["review", "stars"]),
        ({"label": "stars", "text": "text"}, CLASSIFY, ["text", "label"]),
        ({"": "id", "Text": "text", "Label": "label"}, CLASSIFY, ["Text", "Label"]),
        (
            {"Unnamed: 0": "id", "Review Text": "text", "Rating": "stars", "Title": "short"},
            CLASSIFY,
            ["Review Text", "Rating"],
        ),
        (
            {"review_id": "id", "reviewText": "text", "overall": "stars", "url": "url"},
            CLASSIFY,
            ["reviewText", "overall"],
        ),
        (
            {"review_date": "date", "review_text": "text", "star_rating": "stars"},
            CLASSIFY,
            ["review_text", "star_rating"],
        ),
        (
            {"tweet_id": "id", "airline_sentiment": "label", "created": "date", "tweet": "text"},
            CLASSIFY,
            ["tweet", "airline_sentiment"],
        ),
        ({"id": "id", "comment_text": "text", "toxic": "label"}, CLASSIFY, ["comment_text", "toxic"]),
        ({"v1": "label", "v2": "text"}, CLASSIFY, ["v2", "v1"]),
        ({"Satz": "text", "Note": "stars"}, CLASSIFY, ["Satz", "Note"]),
        ({"sentence": "text", "text": "text", "label": "label"}, CLASSIFY, ["text", "label"]),
        ({"body": "text", "created": "date", "euros": "number"}, SCORE, ["body", "euros"]),
        ({"text": "text", "price": "number", "weight": "number"}, SCORE, ["text", "price"]),
        ({"id": "id", "english": "text", "german": "text"}, TRANSLATE, ["english", "german"]),
        ({"de": "text", "en": "text"}, TRANSLATE, ["de", "en"]),
        ({"article": "text", "target": "short"}, TRANSLATE, ["article", "target"]),
        ({"sentence1": "text", "sentence2": "text", "gold": "label"}, PAIR, ["sentence1", "sentence2", "gold"]),
    ],
)
def test_realistic_headers(
    columns: dict[str, str], roles: tuple[Role, ...], expected: list[str], tmp_path: Path
) -> None:
    records = read(write(tmp_path / "a.csv", table(columns)), roles)
    assert list(records.columns.values()) == expected
    assert list(records.columns) == [role.name for role in roles]


@pytest.mark.parametrize(
    ("columns", "roles", "sentence"),
    [
        (
            {"stars": "stars", "category": "label", "text": "text"},
            CLASSIFY,
            "'stars', 'category' could be label; its columns are 'stars', 'category', 'text'; "
            "say which with data.columns={label: stars}",
        ),
        (
            {"question": "text", "reply": "text", "label": "label"},
            CLASSIFY,
            "'question', 'reply' could be text; its columns are 'question', 'reply', 'label'; "
            "say which with data.columns={text: question}",
        ),
        (
            {"text": "text", "amount": "number", "url": "url"},
            CLASSIFY,
            "no column looks like label; its columns are 'text', 'amount', 'url'; "
            "say which with data.columns={label: text}",
        ),
        (
            {"text": "text", "width": "number", "height": "number"},
            SCORE,
            "'width', 'height' could be number; its columns are 'text', 'width', 'height'; "
            "say which with data.columns={number: width}",
        ),
    ],
)
def test_in_doubt_the_columns_are_listed(
    columns: dict[str, str], roles: tuple[Role, ...], sentence: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.csv", table(columns))
    with pytest.raises(UserError) as caught:
        read(source, roles)
    assert str(caught.value) == f"{source}: {sentence}"


def test_what_was_guessed_is_said(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table({"review": "text", "stars": "stars"}))
    assert "'review' is taken as text, 'stars' as label (guessed)" in read(source, CLASSIFY).notes
    assert "'stars' is taken as label (guessed)" in read(source, CLASSIFY, columns={"text": "review"}).notes
    given = read(source, CLASSIFY, columns={"text": "stars", "label": "review"})
    assert given.columns == {"text": "stars", "label": "review"}
    assert not [note for note in given.notes if "(guessed)" in note]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"text": "reviw"}, "data.columns.text: {} has no column 'reviw'; did you mean 'review'?"),
        ({"text": "zzz"}, "data.columns.text: {} has no column 'zzz'; its columns are 'review', 'stars'"),
        ({"txt": "review"}, "data.columns: there is no role 'txt'; did you mean 'text'?"),
        (
            {"text": "review", "label": "review"},
            "data.columns.label: the column 'review' is given twice; each role needs its own",
        ),
    ],
)
def test_a_wrong_column_is_refused(columns: dict[str, str], sentence: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table({"review": "text", "stars": "stars"}))
    with pytest.raises(UserError) as caught:
        read(source, CLASSIFY, columns=columns)
    assert str(caught.value) == sentence.replace("{}", source)


def test_too_few_columns_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table({"review": "text"}))
    with pytest.raises(UserError) as caught:
        read(source, CLASSIFY)
    assert str(caught.value) == f"{source} has 1 column ('review'), but 2 are needed: text, label"


def test_a_validation_file_has_the_same_columns(tmp_path: Path) -> None:
    train, held = (
        write(tmp_path / name, table(columns))
        for name, columns in (
            ("a.csv", {"review": "text", "stars": "stars"}),
            ("b.csv", {"review": "text", "points": "stars"}),
        )
    )
    with pytest.raises(UserError) as caught:
        read(train, CLASSIFY, validation=held)
    assert str(caught.value) == f"{held} has no column 'stars', which is used as label; its columns are review, points"


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_without_a_header_columns_are_numbers(ending: str, tmp_path: Path) -> None:
    content = table({"a": "label", "b": "text"}, rows=30, header=False)
    source = write(tmp_path / f"a.{ending}", content if ending == "csv" else content.replace(",", "\t"))
    records = read(source, CLASSIFY, columns={"text": "2", "label": "1"})
    assert len(everything(records)) == 30
    assert {row["label"] for row in everything(records)} == set(LABELS)
    assert (
        f"{source} has no header: its first line is read as a row, and its columns are called 1 to 2" in records.notes
    )
    assert read(source, CLASSIFY, columns={"text": "2"}).columns == {"text": "2", "label": "1"}


@pytest.mark.parametrize(
    ("columns", "why"),
    [({"a": "text", "b": "stars"}, "it contains '.'"), ({"b": "label", "a": "text"}, "'.*' is also a value of")],
)
def test_a_row_in_place_of_the_header_is_noticed(columns: dict[str, str], why: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table(columns, header=False))
    with pytest.raises(
        UserError,
        match=rf"line 1 of .* looks like a row and not like a header: {why}.*data\.columns=\{{text: 1, label: 2\}}",
    ):
        read(source, CLASSIFY)


def test_a_column_that_is_called_a_number_is_its_name(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table({"1": "label", "2": "text"}, rows=30))
    records = read(source, CLASSIFY, columns={"text": "2", "label": "1"})
    assert len(everything(records)) == 30


def test_lists_are_words_and_tags_by_what_is_in_them(tmp_path: Path) -> None:
    rows = [{"ner": ["O", "P"] * 3, "id": str(i), "sent": [f"w{i}{j}" for j in range(6)]} for i in range(20)]
    source = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read(source, TAG).columns == {"words": "sent", "tags": "ner"}
    assert read(source, TAG, columns={"words": "ner"}).columns == {"words": "ner", "tags": "sent"}


def test_answers_are_objects(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "passage": "Ann is in Rome.",
        "query": "Where?",
        "spans": [{"text": "Rome", "answer_start": 10}],
    }
    source = write(tmp_path / "a.jsonl", (json.dumps(row) + "\n") * 3)
    assert read(source, ANSWER).columns == {"context": "passage", "question": "query", "answers": "spans"}


def test_columns_of_conll_are_given_by_number(tmp_path: Path) -> None:
    source = write(tmp_path / "a.conll", "a DT B-NP O\nb NN I-NP P\n\n" * 4)
    assert everything(read(source, TAG, columns={"tags": "2"}))[0] == {"words": ["a", "b"], "tags": ["DT", "NN"]}


def test_columns_of_conllu_are_forms_and_parts_of_speech(tmp_path: Path) -> None:
    words = [("1-2", "vámonos", "_"), ("1", "vamos", "VERB"), ("2", "nos", "PRON"), ("2.1", "ya", "ADV")]
    lines = "".join("\t".join((number, form, form, tag, *"_" * 6)) + "\n" for number, form, tag in words)
    source = write(tmp_path / "a.conllu", f"# sent_id = 1\n{lines}\n" * 3)
    assert everything(read(source, TAG)) == [{"words": ["vamos", "nos"], "tags": ["VERB", "PRON"]}] * 3


def test_one_role_needs_one_column(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table({"note": "text", "url": "short"}))
    assert read(source, (TEXT,)).columns == {"text": "note"}
