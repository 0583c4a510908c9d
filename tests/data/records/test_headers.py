"""CSV and TSV files as spreadsheets and other programs write them: read as the rows that they hold, or refused."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.records.cases import CLASSIFY, SCORE, everything, read, write

from qkv.system.errors import UserError

WORDS = ("lamp", "warm", "soup", "stale", "Größe", "naïve", "it's", "day", "'quoted'", "50 %")
TITLES = ("Export of 2023", "Reviews, all of them", "Sheet1", "Größe: 5")
Rows = list[tuple[str, str]]


def rows_of(count: int = 40) -> Rows:
    """Texts with a label, all different."""
    return [(f"the {WORDS[i % 7]} of day {i}, {WORDS[i % 10]}", ("good", "bad", "so; so")[i % 3]) for i in range(count)]


def written(table: list[list[str]], delimiter: str, ending: str, quote_all: bool) -> str:
    file = io.StringIO()
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=delimiter, lineterminator=ending, quoting=quoting).writerows(table)
    return file.getvalue()


@st.composite
def habits(draw: st.DrawFn) -> tuple[bytes, str, Rows]:
    """(content of a file, its extension, the rows that it holds), written with habits of spreadsheets."""
    rows, delimiter = rows_of(draw(st.integers(12, 40))), draw(st.sampled_from(",;\t"))
    table = [["remark", "mood"], *(list(row) for row in rows)]
    index = draw(st.sampled_from(["none", "blank", "Unnamed: 0", "absent"]))
    if index != "none":
        names = [] if index == "absent" else ["" if index == "blank" else index]
        table = [[*names, *table[0]], *([str(i), *row] for i, row in enumerate(table[1:]))]
    blank, short = draw(st.integers(0, 3)), draw(st.booleans())
    if index != "absent":  # an index without a cell in the header and empty cells at its end cannot be told apart
        table = [row + [""] * (blank if i == 0 or not short else 0) for i, row in enumerate(table)]
    width = len(table[1])
    ending, quote_all = draw(st.sampled_from(["\n", "\r\n"])), draw(st.booleans())
    title = draw(st.sampled_from(["none", "padded", "apart"])) if index != "absent" else "none"
    text = written(table, delimiter, ending, quote_all)
    if title == "padded":
        text = written([[draw(st.sampled_from(TITLES))] + [""] * (width - 1)], delimiter, ending, quote_all) + text
    elif title == "apart":
        text = f"{written([[draw(st.sampled_from(TITLES))]], delimiter, ending, quote_all)}{ending}{text}"
    if draw(st.booleans()):
        text = f"sep={delimiter}{ending}{text}"
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    return text.encode(encoding), "tsv" if delimiter == "\t" and draw(st.booleans()) else "csv", rows


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=habits())
def test_habits_of_spreadsheets_give_the_rows_that_were_written(file: tuple[bytes, str, Rows], tmp_path: Path) -> None:
    content, ending, rows = file
    records = read(write(tmp_path / f"a.{ending}", content), CLASSIFY)
    assert records.columns == {"text": "remark", "label": "mood"}
    assert not records.bad
    assert sorted((row["text"], row["label"]) for row in everything(records)) == sorted(rows)


def test_columns_without_a_name_are_told(tmp_path: Path) -> None:
    """The table of short messages as a spreadsheet saved it: texts with commas are torn into the columns behind."""
    rows = "".join(f"ham,see you at {i},,,\nspam,call now {i} and win a prize,,,\n" for i in range(20))
    source = write(tmp_path / "spam.csv", f"v1,v2,,,\n{rows}ham,well, that is it, and so on,,\n")
    records = read(source, CLASSIFY)
    assert records.columns == {"text": "v2", "label": "v1"}
    assert f"1 column of {source} has neither a name nor a value and is ignored" in records.notes
    assert any("column 3 is called 'Unnamed: 2', column 4 is called 'Unnamed: 3'" in note for note in records.notes)
    assert "'v2' is taken as text, 'v1' as label (guessed)" in records.notes


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("remark,remark,mood\n" + "a b,c d,good\ne f,g h,bad\n" * 9, "has two columns 'remark'"),
        ("a long remark on it,good\nanother remark,bad\n" * 9, "'good' is also a value of its column"),
        ("a remark,4.5\nanother one,3.5\n" * 9, "it contains '4.5'"),
        ("2021,warm soup\n2022,stale soup\n" * 9, "it contains '2021'"),
        ("sep=;\n", "is empty"),
        (",,\n", "has 0 columns"),
    ],
)
def test_what_is_no_header_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        read(write(tmp_path / "a.csv", content), SCORE if "4.5" in content else CLASSIFY)
    assert sentence in str(caught.value) or "has no rows" in str(caught.value)


def test_a_file_of_one_column_has_no_title(tmp_path: Path) -> None:
    """Texts with commas that nobody quoted are no header and rows below a title."""
    content = "remark\n" + "".join(f"I saw it {i}, and liked {WORDS[i % 7]} {i}\n" for i in range(20))
    with pytest.raises(UserError, match=r"20 of 20 rows of .* cannot be used"):
        read(write(tmp_path / "a.csv", content), CLASSIFY[:1])


def test_numbers_of_columns_still_name_those_of_a_file_without_header(tmp_path: Path) -> None:
    content = "sep=;\n" + "".join(f"{label};{text}\n" for text, label in rows_of(12) if ";" not in label)
    records = read(write(tmp_path / "a.csv", content), CLASSIFY, columns={"text": "2", "label": "1"})
    assert len(everything(records)) == content.count("\n") - 1
