"""Data in memory as files: named after their content, read back equal, and removed if nothing came of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from qkv.data.corpora.sources import resolve
from qkv.data.given.files import write_splits
from qkv.data.records.model import Role
from qkv.data.records.open import open_records
from qkv.spec.data import Data
from qkv.spec.files.given import found_in, kept_name
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

TEXT, LABEL = Role("text", "text", ("text",)), Role("label", "label", ("label",))


def write(data: Any, folder: Path, running: bool = False, **others: Any) -> dict[str, str]:
    with write_splits({"train": data, **others}, folder, lambda _: folder, running) as found:
        return found.sources


def test_the_name_is_the_digest_of_the_content(tmp_path: Path) -> None:
    rows = [{"text": f"größer {i}", "label": "ab"[i % 2]} for i in range(6)]
    source = write(rows, tmp_path / "run")["train"]
    content = Path(source).read_bytes()
    assert [json.loads(line) for line in content.splitlines()] == rows
    assert Path(source).name == hashlib.sha256(content).hexdigest()[:32] + ".jsonl" == kept_name(source)
    columns = {"text": [row["text"] for row in rows], "label": [row["label"] for row in rows]}
    assert write(columns, tmp_path / "run")["train"] == source
    assert write(rows[:5], tmp_path / "run")["train"] != source
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["data"]


def test_what_was_changed_on_disk_is_written_anew(tmp_path: Path) -> None:
    source = Path(write(["a", "b"], tmp_path)["train"])
    before = source.read_bytes()
    source.write_bytes(b"other")
    write(["a", "b"], tmp_path)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a", "b"], "a\nb"),
        (["a\n", "b\n"], "a\nb\n"),
        (["a\nb", "c\n", "d"], "a\nb\n\nc\nd"),
        (["a\nb\n\n", "", "c"], "a\nb\n\n\nc"),
        (["whole\n\ntext\n"], "whole\n\ntext\n"),
    ],
    ids=["lines", "with breaks", "paragraphs", "empty", "one"],
)
def test_running_text_keeps_texts_apart(texts: list[str], expected: str, tmp_path: Path) -> None:
    source = write(texts, tmp_path, running=True)["train"]
    assert "".join(resolve(source).train.blocks()) == expected


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (["a", None], "row 1 .* is not a text"),
        (["a", "\ud800"], "row 1 .* half a surrogate"),
        ([{"a": "x", "b": "y"}], "has the columns a, b; a running text has one"),
        ([{"text": 3}], "row 0 .* is not a text"),
    ],
)
def test_what_is_no_running_text_leaves_no_file(data: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        write(data, tmp_path / "a" / "b", running=True)
    assert not list(tmp_path.iterdir())


def test_files_stay_only_if_the_folder_became_their_run(tmp_path: Path) -> None:
    def fail(text: str, spec: str | None) -> None:
        with write_splits(
            {"train": [text]}, tmp_path / "runs", lambda _: tmp_path / "runs" / "a", True, "spec.yaml"
        ) as found:
            if spec is not None:
                (found.folder / "spec.yaml").write_text(spec.format(found.sources["train"]))
            raise UserError("no")

    with pytest.raises(UserError):
        fail("first", None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError):
        fail("first", "data: {}")
    files = list(tmp_path.glob("runs/a/data/*"))
    assert len(files) == 1
    with pytest.raises(UserError):
        fail("of another run", None)
    assert list(tmp_path.glob("runs/a/data/*")) == files


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the data cannot be written to"):
        write(["a"], tmp_path / "file" / "run")


def test_splits_with_the_same_content_are_one_file(tmp_path: Path) -> None:
    sources = write(["a"], tmp_path, validation=["a"], test="other.csv")
    assert sources == {"train": sources["train"], "validation": sources["train"], "test": "other.csv"}
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1


def test_bad_rows_are_told_by_their_number(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": f"t{i}", "label": "ab"[i % 2]} for i in range(8)]
    rows[2]["label"], rows[5]["text"], rows[6]["text"] = float("nan"), "\ud800", True
    data = Data(source=write(rows, tmp_path)["train"], bad_rows="refuse")
    with pytest.raises(
        UserError, match=r"3 of 8 rows .* count from 0.*: row 2: no label; row 5: .*; row 6: text is true"
    ):
        open_records(data, [TEXT, LABEL])
    assert len(open_records(data.changed(bad_rows="skip"), [TEXT, LABEL]).bad) == 3


def test_a_folder_that_was_moved_finds_its_data(tmp_path: Path) -> None:
    source = write(["a"], tmp_path / "old")["train"]
    recipe = Recipe(data=Data(source=source, validation=source, test="test.csv"))
    (tmp_path / "old").rename(tmp_path / "new")
    here = str(tmp_path / "new" / "data" / Path(source).name)
    assert found_in(tmp_path / "new", recipe).data == Data(source=here, validation=here, test="test.csv")
    assert found_in(tmp_path / "elsewhere", recipe) is recipe
