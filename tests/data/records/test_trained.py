"""Tables for a trained run: its columns, by name, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.records.cases import ANSWER, CLASSIFY, LABEL, SCORE, TAG, TRANSLATE, write

from qkv.data.records.columns.trained import trained_columns
from qkv.data.records.formats import table_of
from qkv.data.records.model import Role
from qkv.data.records.open import open_rows
from qkv.data.records.table import Row, Table
from qkv.spec.data import Data
from qkv.system.errors import UserError

SERIES = Role("series", "series", ("series",))
GRAPH = Role("graph", "signal", ("graph",))
IMAGE = Role("image", "image", ("image", "file"))
TASKS = [CLASSIFY, SCORE, TRANSLATE, TAG, ANSWER, (SERIES, LABEL), (GRAPH, LABEL), (IMAGE, LABEL)]
NAMES = st.sampled_from(["review", "text", "label", "score", "mood", "a b", "words", "source", "target", "image", "x"])


def table(*columns: str) -> Table:
    row = Row(2, dict.fromkeys(columns, "a"))
    return Table("other.csv", columns, lambda: iter([row]), "")


@given(data=st.data(), roles=st.sampled_from(TASKS), columns=st.lists(NAMES, min_size=1, unique=True))
def test_columns_are_those_of_the_training_or_refused(
    data: st.DataObject, roles: tuple[Role, ...], columns: list[str]
) -> None:
    trained = {role.name: data.draw(NAMES) for role in roles}
    missing = [column for column in trained.values() if column not in columns]
    if not missing:
        assert trained_columns(table(*columns), roles, trained, "--column {}=NAME".format) == trained
        return
    with pytest.raises(UserError) as caught:
        trained_columns(table(*columns), roles, trained, "--column {}=NAME".format)
    role = next(role for role, column in trained.items() if column == missing[0])
    assert str(caught.value) == (
        f"other.csv has no column {missing[0]!r}, which the run was trained on; "
        f"name the column to read with --column {role}=NAME"
    )


def test_a_format_says_its_column_and_a_table_in_memory_may_name_its_role() -> None:
    folder = replace(table("image", "label"), defaults={"image": ("image",), "label": ("label",)})
    assert trained_columns(folder, (IMAGE, LABEL), {"image": "file", "label": "kind"}, str) == {}
    given = replace(table("text", "label"), given=True)
    trained = {"text": "review", "label": "label"}
    assert trained_columns(given, CLASSIFY, trained, str) == {"text": "text", "label": "label"}
    with pytest.raises(UserError, match="has no column 'review'"):
        trained_columns(table("text", "label"), CLASSIFY, trained, str)


def test_evaluation_reads_the_columns_of_the_training(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "2024,kind\n" + "2023-01-10,good\n2023-01-11,bad\n" * 9)
    trained = Data(source="train.csv", columns={"text": "review", "label": "kind"})
    with pytest.raises(UserError, match=r"has no column 'review', .*data\.columns\.text=NAME"):
        open_rows(trained, CLASSIFY, source, "data")
    named = open_rows(trained.changed(columns={"text": "2024", "label": "kind"}), CLASSIFY, source, "data")
    assert len(named.splits["data"]) == 18
    assert table_of(source, trained, CLASSIFY, "data.source").columns == ("2024", "kind")
