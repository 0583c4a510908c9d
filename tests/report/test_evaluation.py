"""Report of an evaluation on several splits: whose details are shown."""

from __future__ import annotations

from typing import Any

from tests.report.checks import read_page

from qkv.report.evaluation import evaluation_report


def split(*sections: dict[str, Any]) -> dict[str, Any]:
    return {"figures": {"accuracy": 80.0}, "sections": sections, "notes": []}


def table(kind: str, cell: str) -> dict[str, Any]:
    return {"kind": kind, "title": cell.title(), "columns": ["column"], "rows": [[cell]]}


def test_a_section_on_the_run_is_shown_beside_the_details_of_the_test_part() -> None:
    splits = {
        "validation": split(table("contestants", "the winner"), table("examples", "only there")),
        "test": split(table("examples", "a mistake")),
    }
    text = read_page(evaluation_report("runs/a", "", splits, 7)).text
    assert [text.count(cell) for cell in ("the winner", "only there", "a mistake")] == [1, 0, 1]
    alone = read_page(evaluation_report("runs/a", "", {"validation": splits["validation"]}, 7)).text
    assert [alone.count(cell) for cell in ("the winner", "only there")] == [1, 1]
