"""A table is parsed once between the command and the first batch, by every verb and whatever its format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tables import write_tables

from qkv.api.functions import find_recipe
from qkv.choosing.guessed import guess_task
from qkv.cli.main import main
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.data.corpora.text import TextSource
from qkv.data.reading import one_reading
from qkv.data.records import table
from qkv.system.processor import processor_name
from qkv.tasks.registry import build_task

TABLES = {
    "classification": "reviews.csv",
    "regression": "prices.csv",
    "token_classification": "names.conll",
    "question_answering": "squad.json",
    "summarization": "news.jsonl",
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Iterator[Path]:
    """Tables that are longer than what tells their format, so that a look at their beginning is no reading of them."""
    head = 2048
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder, rows=400)
    (folder / "reviews.tsv").write_text((folder / "reviews.csv").read_text().replace(",", "\t"))
    assert all((folder / name).stat().st_size > head for name in TABLES.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "HEAD", head)
        yield folder


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is decoded up to its end."""
    found: Counter[str] = Counter()
    decoded = TextSource._decoded

    def counted(self: TextSource) -> Iterator[str]:
        yield from decoded(self)
        found[Path(self.name).name] += 1

    monkeypatch.setattr(TextSource, "_decoded", counted)
    return found


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_read_once_from_the_guess_to_the_examples(kind: str, tables: Path, readings: Counter[str]) -> None:
    source = str(tables / TABLES[kind])
    with one_reading():
        assert guess_task({"source": source}) == kind
        recipe, _ = find_recipe(source, task=kind, resume=False)
        dataset = build_task(recipe.task).open(recipe)
    assert readings == {TABLES[kind]: 1}
    assert dataset.batch(0).num_targets


@pytest.mark.parametrize("source", ["a.txt | b.txt", "reviews.tsv"])
def test_two_texts_and_a_tsv_are_read_once(
    source: str, tables: Path, readings: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tables)
    with one_reading():
        recipe, _ = find_recipe(source, task="translation" if "|" in source else "classification", resume=False)
        build_task(recipe.task).open(recipe)
    assert readings == dict.fromkeys(source.split(" | "), 1)


@pytest.mark.slow
def test_the_command_reads_its_table_once(tables: Path, readings: Counter[str], tmp_path: Path) -> None:
    short = (
        "training.steps=1",
        "model.width=16",
        "training.validation.batches=1",
        "training.batch_size=4",
        "training.minutes=null",
    )
    typed = (
        "train",
        "classify",
        "--data",
        tables / "reviews.csv",
        "--validation",
        tables / "reviews.tsv",
        "--out",
        tmp_path / "run",
        *short,
    )
    assert main([str(word) for word in typed]) == 0
    assert readings == {"reviews.csv": 1, "reviews.tsv": 1}


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"

    def rows(text: str) -> Any:
        file.write_text("text,label\n" + text)
        recipe, _ = find_recipe(file, task="classification", resume=False)
        return build_task(recipe.task).open(recipe).records["train"]  # type: ignore[attr-defined]

    with one_reading():
        before = rows("a b,x\nc d,y\n" * 10)
        assert rows("a b,x\nc d,y\n" * 20) != before
