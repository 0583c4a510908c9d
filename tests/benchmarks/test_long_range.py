"""Long rows: expressions and their values, documents of one opinion, parts without common rows, and the table."""

from __future__ import annotations

import csv
import gzip
import os
import random
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks import long_range_data as data
from qkv.comparison.outcome import Outcome, write_outcome
from qkv.spec.tokenizers import WordList
from qkv.tokenizers.train import train

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 1000
SMALL = data.list_operations(80, 10, LONGEST)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("long_range")


def evaluated(text: str) -> int:
    """Value of an expression by Python itself: ``[MAX 2 [SM 9 3 ] ]`` becomes ``MAX([2, SM([9, 3])])``."""
    call = re.sub(r"\[(\w+) ", r"\1([", text).replace(" ]", "])").replace(" ", ", ")
    functions = {
        "MIN": np.min,
        "MAX": np.max,
        "MED": lambda digits: np.floor(np.median(digits)),
        "SM": lambda digits: np.sum(digits) % 10,
    }
    return int(eval(call, functions))


def depth(text: str) -> int:
    levels = np.cumsum([(letter == "[") - (letter == "]") for letter in text])
    assert levels[-1] == 0
    return int(levels.max())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MED 1 2 ]", 1),
        ("[MED 9 1 5 ]", 5),
        ("[SM 9 8 7 ]", 4),
        ("[SM [MED 3 4 9 8 ] [MIN 5 5 ] ]", 1),
    ],
)
def test_the_evaluation_of_these_tests_by_hand(text: str, value: int) -> None:
    assert evaluated(text) == value


def test_labels_are_the_values_of_the_expressions() -> None:
    rows = [row for part in SMALL.values() for row in part]
    assert [label for _, label in rows] == [evaluated(text) for text, _ in rows]
    assert {label for _, label in rows} == set(range(10))
    assert {operator for text, _ in rows for operator in re.findall("[A-Z]+", text)} == {"MIN", "MAX", "MED", "SM"}


def test_expressions_have_the_tokens_levels_and_arguments_that_are_said() -> None:
    texts = [text for part in SMALL.values() for text, _ in part]
    tokenizer = train(WordList(vocab_size=32, min_frequency=1, lowercase=False), texts)
    lengths = [len(tokenizer.encode(text)) for text in texts]
    assert all(data.SHORTEST <= length <= LONGEST for length in lengths)
    assert lengths == [len(re.findall(r"\[|\]|\w+", text)) for text in texts]
    assert max(map(depth, texts)) == data.DEPTH
    drawn = data.operation(random.Random(3))
    assert drawn.length == len(re.findall(r"\[|\]|\w+", str(drawn)))
    inner = [found for text in texts for found in re.findall(r"\[\w+ ([\d ]+)\]", text)]
    assert {len(found.split()) for found in inner} == set(range(2, 11))


def test_parts_of_expressions_share_no_row_and_have_their_sizes() -> None:
    texts = {part: {text for text, _ in rows} for part, rows in SMALL.items()}
    assert {part: len(found) for part, found in texts.items()} == {"train": 80, "validation": 10, "test": 10}
    assert len(set.union(*texts.values())) == 100


def test_the_seed_alone_determines_the_expressions() -> None:
    assert data.list_operations(20, 5, 300) == data.list_operations(20, 5, 300)
    assert data.list_operations(20, 5, 300, seed=1) != data.list_operations(20, 5, 300)


def sentences(name: str, count: int) -> list[data.Row]:
    return [(f"{name} {'good' if i % 2 else 'bad'} {'é' * (i % 40)} {i}", i % 2) for i in range(count)]


def test_documents_join_sentences_of_one_label_up_to_a_number_of_bytes() -> None:
    given = sentences("film", 200)
    found = data.documents(given, 8, LONGEST)
    assert len(found) == len({text for text, _ in found}) == 8
    for text, label in found:
        assert len(text.encode()) <= LONGEST
        assert ("bad" in text, "good" in text) == (label == 0, label == 1)
    assert max(len(text.encode()) for text, _ in found) > LONGEST - 100
    assert found == data.documents(given, 8, LONGEST) != data.documents(given, 8, LONGEST, seed=1)


def test_all_sentences_are_used_before_one_is_used_again() -> None:
    given = sentences("film", 200)
    texts = [text for text, _ in data.documents(given, 40, LONGEST)]
    numbers = [int(word) for text in texts for word in text.split() if word.isdigit()]
    assert sorted(numbers[:200]) == list(range(200))
    assert len(numbers) > 200


def test_few_sentences_make_few_documents() -> None:
    assert len(data.documents([("good", 1), ("bad", 0)], 50, LONGEST)) == 2


def test_documents_of_a_part_have_its_sentences_alone(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    for name in ("train", "dev", "test"):
        lines = [f"{text}\t{label}" for text, label in [*sentences(name, 60), ("everywhere", 1)]]
        content = "\n".join(["sentence\tlabel", *lines]).encode()
        (tmp_path / f"sst2/{name}.tsv.gz").write_bytes(gzip.compress(content))
    parts = data.opinions(tmp_path, 12, 4, LONGEST)
    assert {part: len(rows) for part, rows in parts.items()} == {"train": 12, "validation": 4, "test": 4}
    for part, file in {"train": "train", "validation": "dev", "test": "test"}.items():
        words = " ".join(text for text, _ in parts[part]).split()
        assert {word for word in words if word in ("train", "dev", "test")} == {file}
        assert part == "test" or "everywhere" not in words


@pytest.mark.data
def test_documents_of_reviews() -> None:
    parts = data.opinions(Path(os.environ["QKV_DATA"]), 900, 150, LONGEST)
    texts = [text for rows in parts.values() for text, _ in rows]
    assert len(texts) == len(set(texts)) == 1200
    assert all(0.4 < np.mean([label for _, label in rows]) < 0.6 for rows in parts.values())
    assert np.median([len(text.encode()) for text in texts]) > 850


@pytest.mark.slow
def test_tables_of_the_parts_are_written_once(program: ModuleType, tmp_path: Path) -> None:
    given = program.arguments(["--smoke", "--out", str(tmp_path)])
    files = program.tables("listops", given)
    with files["test"].open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["text", "label"]
    assert [(text, int(label)) for text, label in rows] == data.list_operations(60, 10, 200)["test"]
    files["test"].write_text("kept", encoding="utf-8")
    assert program.tables("listops", given) == files
    assert files["test"].read_text(encoding="utf-8") == "kept"
    given.longest = 220
    assert program.tables("listops", given) == files
    assert files["test"].read_text(encoding="utf-8") != "kept"


def test_the_page_has_a_place_for_the_table_and_the_note(program: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "long_range.md"
    page.write_text((ROOT / "docs/long_range.md").read_text(encoding="utf-8"), encoding="utf-8")
    for accuracy in ("20.0", "30.0"):  # the second replaces the first
        program.write_table(page, program.TABLE, ["model", "accuracy"], [["attention", accuracy]], f"{accuracy} %.")
    text = page.read_text(encoding="utf-8")
    assert "| attention | 30.0 |\n\n30.0 %.\n\n<!-- end of table long range -->\n" in text
    assert "20.0 %." not in text


def test_the_table_has_the_runs_that_are_over(program: ModuleType, tmp_path: Path) -> None:
    given = program.arguments(["--smoke", "--finished", "--out", str(tmp_path)])
    given.models = ["attention", "linear"]
    none = program.ranking_of("listops", given)
    assert program.table("listops", none) == []
    assert "Without a finished run: attention (ListOps), linear attention (ListOps)." in program.note(
        {"listops": none}, given
    )
    figures = {"accuracy": 31.25, "accuracy_of_most_frequent_label": 16.0, "accuracy_of_ngrams": 18.04}
    figures = {f"{split}.{name}": value for split in ("validation", "test") for name, value in figures.items()}
    folder = none.plan.run("linear", 1.0, 1).folder
    write_outcome(folder, Outcome("", figures, {"steps": 1234, "seconds in all": 90.0}))
    some = program.ranking_of("listops", given)
    assert program.table("listops", some) == [
        ["ListOps", "most frequent label", "", "", "", "16.0", ""],
        ["ListOps", "logistic regression over n-grams", "", "", "", "18.0", ""],
        ["ListOps", "linear attention", f"{some.rows[1].parameters:,}", "1,234", "1.5", "31.2", "16.13"],
    ]
    assert "Without a finished run: attention (ListOps)." in program.note({"listops": some}, given)


def test_steps_are_of_a_task_or_of_all(program: ModuleType) -> None:
    tasks = ["--tasks", "text", "listops"]
    for line, text, listops in (([], None, None), (["--steps", "7"], 7, 7), (["--steps", "7", "9"], 7, 9)):
        given = program.arguments([*tasks, *line])
        assert (program.steps_of("text", given), program.steps_of("listops", given)) == (text, listops)
