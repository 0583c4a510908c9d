"""The section of ARCHITECTURE.md on attention names the files that a forward pass runs through, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from making.walks import PACKAGE, attention, walk

from qkv.ops.masks import Causal, Sites, Span
from qkv.ops.positions import alibi_slopes

SECTION = "## Attention, read in three files"


def section() -> str:
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return page.split(SECTION)[1].split("\n## ")[0]


def test_attention_is_read_in_three_files() -> None:
    """The files of the table and those that the text says to be shared are all that the walk passes through."""
    table, text = section().split("\n\n")[1:3]
    equation, shared = (set(re.findall(r"`([\w/]+\.py)`", part)) for part in (table, text.split(". A reader")[0]))
    assert len(equation) == 3
    assert set(attention()) == equation | shared


def test_the_table_names_functions_of_its_files() -> None:
    for row in section().split("\n\n")[1].splitlines()[2:]:
        file, *names = re.findall(r"`([^`]+)`", row)
        source = (PACKAGE / file).read_text(encoding="utf-8")
        missing = [name for name in names if not re.search(rf"(class|def) {name.split('.')[-1]}\b", source)]
        assert not missing, f"{file} has no {missing}"


def test_a_walk_has_the_files_that_a_call_runs_in_order() -> None:
    span = Span(0, 1, 0, 1)
    assert walk(lambda: (Causal().sees_all(span), alibi_slopes(2))) == ["ops/masks.py", "ops/positions.py"]
    assert walk(lambda: Sites) == []
