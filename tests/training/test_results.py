"""Results that ``record`` writes into recipes: whose they are, what is refused, what stays in the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.training.kill_storm import ignore

from qkv.runs.storage.load import load
from qkv.spec.files.yaml_edit import with_keys
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.errors import UserError
from qkv.training.loop import train
from qkv.training.watch.results import record, stale

TABLE = "text,label\n" + "".join(
    f"{'good' if i % 2 else 'bad'} film number {i},{'yes' if i % 2 else 'no'}\n" for i in range(60)
)
RECIPE = """\
# Two words are told apart.
name: words
data: {source: SOURCE, tokenizer: words(40)}   # a table
task: classification
model:
  width: 8
  context_length: 12
  blocks: [{branches: [gru]}]
  head: classification
training:
  steps: 6
  batch_size: 4
  schedule: constant
  validation: {every: 3, batches: null}
quick: {training.steps: 2}

typed:
  - metric: right
    figure: validation.accuracy
    value: 51.5   # from memory
  - {metric: a variant, value: 3}

# Others did it, too.
published:
  - {value: 70.5, source: a book, figure: validation.accuracy}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text(TABLE)
    path = tmp_path / "words.yaml"
    path.write_text(RECIPE.replace("SOURCE", str(tmp_path / "table.csv")))
    return path


def trained(recipe: Path, seed: int, *changes: str, quick: bool = False) -> Path:
    folder = recipe.parent / f"seed{seed}{'-'.join(changes)}{'q' * quick}"
    train(read_recipe(recipe, [f"training.seed={seed}", *changes], quick=quick), folder, on_event=ignore)
    return folder


def test_the_result_of_several_seeds(recipe: Path) -> None:
    runs = [trained(recipe, seed) for seed in (1, 2)]
    before = recipe.read_text()
    found = record([runs[1], runs[0]], recipe)
    written = read_recipe(recipe)
    assert written.result == found
    assert found.seeds == (1, 2)
    assert found.steps == (6, 6)
    assert found.form == "full"
    accuracies = [load(run).evaluation["splits"]["validation"]["figures"]["accuracy"] for run in runs]  # pyright: ignore[reportOptionalSubscript]
    figure = found.figures["validation"]["accuracy"]
    assert figure.by_seed == pytest.approx(accuracies, rel=1e-5)
    assert figure.mean == pytest.approx(sum(accuracies) / 2, rel=1e-5)
    assert figure.spread == pytest.approx(abs(accuracies[0] - accuracies[1]), rel=1e-5, abs=1e-9)
    assert found.minutes > 0
    assert set(found.versions) == {"qkv", "torch", "python"}
    assert str(recipe.parent) not in recipe.read_text().split("result:")[1]
    # what stood there stays, but for the typed figure that the result takes the place of
    text = recipe.read_text()
    kept = before[: before.index("typed:")]
    assert text.startswith(kept)
    assert "# Others did it, too.\npublished:\n  - {value: 70.5, source: a book, figure: validation.accuracy}\n" in text
    assert [typed.metric for typed in written.typed] == ["a variant"]
    assert not stale(recipe)
    assert record(runs, recipe).figures == found.figures  # once more takes the place of the first
    assert recipe.read_text().count("result:") == 1


def test_a_changed_recipe_makes_its_result_stale(recipe: Path) -> None:
    record([trained(recipe, 1)], recipe)
    recipe.write_text(
        recipe.read_text().replace("# Two words", "# More words").replace("metric: a variant", "metric: another")
    )
    assert not stale(recipe)
    recipe.write_text(recipe.read_text().replace("steps: 6", "steps: 7"))
    assert "changed after its result was recorded" in stale(recipe)


def test_a_short_run(recipe: Path) -> None:
    short, full = trained(recipe, 1, quick=True), trained(recipe, 1)
    found = record([short], recipe)
    assert found.form == "quick"
    assert len(read_recipe(recipe).typed) == 2, "a short run takes the place of nothing"
    assert not stale(recipe)
    assert record([full], recipe).form == "full"
    with pytest.raises(UserError, match="the result of a short run would replace"):
        record([short], recipe)


def _other_width(recipe: Path) -> list[Path]:
    return [trained(recipe, 1, "model.width=4")]


def _other_steps(recipe: Path) -> list[Path]:
    return [trained(recipe, 1), trained(recipe, 2, "training.steps=5")]


def _unfinished(recipe: Path) -> list[Path]:
    run = trained(recipe, 1)
    text = (run / "spec.yaml").read_text()
    (run / "spec.yaml").write_text(text.replace("steps: 6", "steps: 8"))
    return [run]


def _not_evaluated(recipe: Path) -> list[Path]:
    run = trained(recipe, 1)
    (run / "evaluation.json").unlink()
    return [run]


def _edited(recipe: Path) -> list[Path]:
    run = trained(recipe, 1)
    for path in (run / "spec.yaml", recipe):
        path.write_text(path.read_text().replace("batch_size: 4", "batch_size: 8"))
    return [run]


def _one_seed_twice(recipe: Path) -> list[Path]:
    run = trained(recipe, 1)
    shutil.copytree(run, run.with_name("copy"))
    return [run, run.with_name("copy")]


def _other_data(recipe: Path) -> list[Path]:
    first = trained(recipe, 1)
    table = recipe.with_name("table.csv")
    table.write_text(table.read_text().replace("film number 7,", "movie number 7,"))
    return [first, trained(recipe, 2)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_other_width, "model.width is 4 there and 8 here"),
        (_other_steps, "training.steps is 5 there and 6 here"),
        (_unfinished, "6 of 8 steps are done"),
        (_edited, "training.batch_size is 8, but the weights were trained with 4"),
        (_not_evaluated, "no final evaluation yet"),
        (_one_seed_twice, "two of the runs have the seed 1"),
        (_other_data, "trained on different data"),
    ],
)
def test_what_is_refused(recipe: Path, make: Any, said: str) -> None:
    runs, before = make(recipe), recipe.read_text()
    with pytest.raises(UserError, match=said):
        record(runs, recipe)
    assert recipe.read_text() == before


def test_json_is_written_too(recipe: Path) -> None:
    as_json = recipe.with_suffix(".json")
    as_json.write_text(json.dumps(yaml.safe_load(recipe.read_text())))
    found = record([trained(recipe, 1)], as_json)
    assert read_recipe(as_json).result == found
    assert read_recipe(as_json).description == read_recipe(recipe).description


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb:\n- 1\n- 2\n# of c\nc: 3\n", "a: 1\nb: new\n# of c\nc: 3\n"),
        ("b: >-\n  many\n\n  words\n\nc: 3", "b: new\n\nc: 3"),
        ("a: 1 # one\n", "a: 1 # one\nb: new\n"),
        ("a: 1\nb: {x: 1,\n  y: 2}\n", "a: 1\nb: new\n"),
        ("b: |\n  a block\n  # not a comment\n# a comment\nc: 1\n", "b: new\n# a comment\nc: 1\n"),
    ],
)
def test_one_key_is_replaced(text: str, expected: str) -> None:
    assert with_keys(text, {"b": "new"}) == expected


@pytest.mark.parametrize("text", ["{a: 1, b: 2}\n", "a: &x [1]\nb: &y 2\nc: *y\n"])
def test_a_file_that_cannot_be_changed_as_text(text: str) -> None:
    with pytest.raises(UserError):
        with_keys(text, {"b": "new"}, "file.yaml")
