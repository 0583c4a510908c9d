"""Tables with a picture, a text, numbers and categories: inputs guessed or named, linear models of them, runs."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from tests.serving.conftest import serving

import qkv
from qkv.choosing.mixed_columns import with_inputs
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.data.processors.processor import build_processor
from qkv.data.records.images.pictures import as_uri
from qkv.data.records.values import Unusable
from qkv.models.wide import AllInputs
from qkv.runs.run import Run, task_of
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.signals.cells import Cell
from qkv.spec.tasks import Classification
from qkv.system.errors import UserError
from qkv.system.processor import processor_name
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.labels.classification import ClassificationTask

SHORT = ["training.steps=6", "training.validation.every=3", "training.minutes=null"]


def write_table(folder: Path, count: int = 120) -> Path:
    """Pictures that are bright or dark, of things that are heavy or slim: only both inputs together tell the kind."""
    rng, lines = random.Random(0), ["picture,note,weight,shape,maker,kind"]
    for number in range(count):
        bright, heavy = rng.random() < 0.5, rng.random() < 0.5
        level = rng.randint(150, 250) if bright else rng.randint(0, 90)
        Image.new("RGB", (8, 8), (level, level, rng.randint(0, 255))).save(folder / f"{number}.png")
        kind = ("light" if bright else "dark") + (" heavy" if heavy else " slim")
        weight = "" if number % 20 == 7 else f"{rng.gauss(60 if heavy else 20, 5):.1f}"
        note = f"a thing made of {rng.choice(['wood', 'iron', 'clay'])} with the number {number}"
        maker = f"{kind.split()[0]}-{kind.split()[1]}-{number % 3}"
        lines.append(f"{number}.png,{note},{weight},{rng.choice('abc')},{maker},{kind}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Run:
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    folder = tmp_path_factory.mktemp("mixed")
    table = write_table(folder)
    return qkv.train(table, task="classify", label="kind", out=folder / "run", overrides=SHORT, bad_rows="skip")


def test_numbers_are_standardised_and_placed_among_their_quantiles() -> None:
    processor = build_processor(build_processor(Cell()).fitted(["1", "2", None, "3", "6"]))
    spec = processor.spec
    assert (spec.mean, spec.categories) == (3.0, ())
    first = processor.encode("2.5")
    assert first[0] == pytest.approx((2.5 - 3) / np.std([1, 2, 3, 6]), rel=1e-6)
    below = [float(np.clip((2.5 - a) / (b - a), 0, 1)) for a, b in zip(spec.edges, spec.edges[1:], strict=False)]
    assert first[1:-1].tolist() == pytest.approx(below, rel=1e-6)
    assert first[-1] == 0
    assert processor.encode(None).tolist() == [0] * (len(spec.edges)) + [1]
    assert processor.notes() == ["1 cell is empty, which is read as a value of its own"]
    assert len(first) == spec.num_simple
    with pytest.raises(Unusable, match="'heavy' is no number"):
        processor.encode("heavy")


def test_numbers_with_commas_and_categories() -> None:
    comma = build_processor(build_processor(Cell()).fitted(["1,5", "2,25", "4,0"]))
    assert comma.spec.decimal == "comma"
    assert comma.encode("3,5")[0] == pytest.approx((3.5 - comma.spec.mean) / comma.spec.deviation, rel=1e-5)
    words = build_processor(build_processor(Cell()).fitted(["red", "blue", "red", None]))
    assert words.spec.categories == ("blue", "red")
    assert [words.encode(each).argmax() for each in ("blue", "red", "green", None)] == [1, 2, 0, 3]
    with pytest.raises(UserError, match="a column of cells is empty"):
        build_processor(Cell()).fitted([None, ""])


def test_inputs_are_guessed_by_content(tmp_path: Path) -> None:
    source = str(write_table(tmp_path))
    data, note = with_inputs(Data(source=source, columns={"label": "kind"}), Classification())
    assert {name: each.kind for name, each in data.inputs.items()} == {
        "image": "images",
        "weight": "cell",
        "shape": "cell",
        "text": "wordpiece",
    }
    assert data.columns["text"] == "note"
    assert note == "'maker' says the target of nearly every row and is not read; --cells reads it."


def test_a_number_that_says_the_label_is_no_input(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    head, *rows = table.read_text().splitlines()
    code = {kind: 10 * place for place, kind in enumerate(sorted({row.rpartition(",")[2] for row in rows}))}
    numbered = [f"{row},{code[row.rpartition(',')[2]]},{place}.5" for place, row in enumerate(rows)]
    table.write_text("\n".join([f"{head},code,place", *numbered]) + "\n")
    data, note = with_inputs(Data(source=str(table), columns={"label": "kind"}), Classification())
    assert {"weight", "place"} <= data.inputs.keys()
    assert "code" not in data.inputs
    assert note == "'maker' and 'code' say the target of nearly every row and are not read; --cells reads them."


def test_columns_that_are_named_decide(tmp_path: Path) -> None:
    source, columns = str(write_table(tmp_path)), {"label": "kind", "text": "note", "cells": "weight, maker"}
    data, _ = with_inputs(Data(source=source, columns=columns), Classification())
    assert list(data.inputs) == ["weight", "maker", "text"]
    alone, _ = with_inputs(Data(source=source, columns={"label": "kind", "text": "note"}), Classification())
    assert alone.inputs == {}
    with pytest.raises(UserError, match=r"--cells: .* has no column 'size'; its columns are picture, note"):
        with_inputs(Data(source=source, columns={**columns, "cells": "size"}), Classification())
    with pytest.raises(UserError, match="the column 'note' is already text"):
        with_inputs(Data(source=source, columns={**columns, "cells": "note"}), Classification())


def test_a_run_joins_all_inputs_and_shows_what_each_adds(run: Run) -> None:
    assert "'picture' (images), 'weight' (numbers), 'shape' (categories), 'note' (text)" in run.recipe.description
    evaluation = json.loads((run.folder / "evaluation.json").read_text())["splits"]["validation"]
    (table,) = (each for each in evaluation["sections"] if each["kind"] == "contestants")
    accuracy = {row[0]: float(row[table["columns"].index("accuracy")]) for row in table["rows"]}
    assert {"image alone", "cells alone", "text alone", "linear", "attention", "attention, linear"} == accuracy.keys()
    kept, figures = table["rows"][0][0], evaluation["figures"]
    assert accuracy[kept] == 100  # neither picture nor weight tells the kind alone
    assert max(accuracy[f"{name} alone"] for name in ("image", "cells", "text")) < 80
    assert {"accuracy_of_image", "accuracy_of_cells", "accuracy_of_ngrams"} <= figures.keys()
    assert figures["accuracy"] >= max(value for name, value in figures.items() if name.startswith("accuracy_of_"))


def test_the_linear_model_is_a_sum_over_the_inputs(run: Run) -> None:
    task, path = task_of(run), run.wide
    assert isinstance(task, ClassificationTask)
    dataset = task.open(run.recipe, run.vocabulary)
    assert isinstance(dataset, ExampleDataset)
    assert isinstance(path, AllInputs)
    rows = dataset.examples["validation"][:3]
    got = path(task.collator(run.recipe, run.vocabulary)([row.fields for row in rows]).input)
    for row, outputs in zip(rows, got, strict=True):
        x, bag = row.fields.features, row.fields.bag
        expected = path.bias + ((torch.from_numpy(x) - path.mean) / path.deviation) @ path.table[: path.first]
        sizes = {int(i): (1 + math.log(n)) * float(path.idf[i]) for i, n in zip(bag.ids, bag.counts, strict=True)}
        for words in (True, False):
            some = {i: size for i, size in sizes.items() if (i < path.buckets) == words}
            norm = math.sqrt(sum(size**2 for size in some.values()))
            for i, size in some.items():
                expected = expected + size / norm * path.table[path.first + i]
        torch.testing.assert_close(outputs, expected, atol=1e-4, rtol=1e-4)


def test_predictions_with_empty_cells_and_unknown_categories_are_served(run: Run) -> None:
    folder = run.folder.parent
    rows = [
        {"image": str(folder / "0.png"), "text": "a thing", "weight": "61.5", "shape": "a"},
        {"image": str(folder / "1.png"), "text": "a thing", "weight": None, "shape": "never seen"},
    ]
    answers = qkv.predict(run, rows)
    assert all(answer["answer"] in run.vocabulary.labels for answer in answers)
    heavy = [qkv.predict(run, {**rows[0], "weight": weight})[0]["answer"].split()[1] for weight in (15, 65)]
    assert heavy == ["slim", "heavy"]
    assert qkv.predict(run, {name: rows[1][name] for name in ("image", "text", "shape")})[0] == answers[1]
    asked = [{**row, "image": as_uri(np.asarray(Image.open(row["image"])))} for row in rows]
    with serving({"mixed": run}) as server:
        served = httpx.post(f"{server.url}/predict", json={"inputs": asked}, timeout=60).json()["data"]
    assert [each["answer"] for each in served] == [each["answer"] for each in answers]


def test_the_same_run_is_resumed_and_evaluated_on_a_table(run: Run, tmp_path: Path) -> None:
    table = write_table(tmp_path)
    folder = tmp_path / "run"
    options = {"task": "classify", "label": "kind", "out": folder, "bad_rows": "skip"}
    qkv.train(table, **options, overrides=["training.steps=3", *SHORT[1:]])
    longer = qkv.train(table, **options, overrides=SHORT)
    assert longer.step <= 6
    (tmp_path / "0.png").unlink()
    with_missing = qkv.evaluate(run, data=str(table))
    assert with_missing["targets"] == 119


def test_recipes_that_do_not_fit_are_refused(run: Run) -> None:
    fields = run.recipe.to_dict()
    with pytest.raises(SpecError, match="'hog' reads one input; use 'inputs'"):
        Recipe.parse({**fields, "wide": "hog"})
    with pytest.raises(SpecError, match="not 'dlinear'"):
        Recipe.parse({**fields, "wide": {"kind": "inputs", "parts": {"image": "dlinear"}}})
    with pytest.raises(SpecError, match="a column holds numbers or categories"):
        Processor.parse({"kind": "cell", "mean": 1.0, "categories": ["a"]})
