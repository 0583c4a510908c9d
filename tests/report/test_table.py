"""Tables: numbers to the right, words to the left, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.report.checks import HOSTILE
from tests.report.test_progress import Terminal, drawings

from qkv.report.table import format_table, print_table


def test_plain_text_is_aligned() -> None:
    rows = [["embedding", 8320, 0.0103, "日本"], ["blocks", 1_234_567, 0.98, "x"], ["total", None, 1.0]]
    assert format_table("Cost", ["part", "parameters", "share", "note"], rows).splitlines() == [
        "Cost",
        "",
        "part       parameters    share  note",
        "embedding       8,320  0.01030  日本",
        "blocks      1,234,567   0.9800  x",
        "total                    1.000",
    ]


@given(st.lists(st.lists(st.none() | st.text(max_size=8) | st.integers() | st.floats(), max_size=3), max_size=5))
def test_every_row_is_one_line(rows: list[list[object]]) -> None:
    lines = format_table("", ["a", "b", "c"], rows).split("\n")
    assert len(lines) == len(rows) + 2
    numbers = [row[2] for row in rows if len(row) > 2 and row[2] is not None]
    if numbers and all(isinstance(v, (int, float)) for v in numbers):
        assert (
            len(
                {
                    cell_len(line)
                    for line, row in zip(lines[1:], rows, strict=False)
                    if len(row) > 2 and row[2] is not None
                }
            )
            == 1
        )


def test_on_a_terminal_markup_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    print_table("Cost [red]", ["part", "count"], [["[bold]a[/bold]\x1b[2J", 1234], ["b", 5]], stream)
    lines = drawings(stream.getvalue())
    assert lines[0].strip() == "Cost [red]"
    assert "[bold]a[/bold]␛[2J" in lines[3]
    assert lines[3].rstrip().endswith("1,234")
    assert lines[4].rstrip().endswith("    5")


def test_elsewhere_no_control_characters_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HOSTILE, [HOSTILE], [[HOSTILE]])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "␛[31m" in out


def test_a_narrow_encoding_is_no_error() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_table("Größe", ["a"], [["∞"]], stream)
    stream.flush()
    assert raw.getvalue() == b"Gr??e\n\na\n?\n"
