"""Every recipe is read, built, trained for a few steps in its short form, and says what it reached, where and when."""

from __future__ import annotations

import argparse
import json
import math
import runpy
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import torch
from tests.tasks import nodes
from tests.tasks.clips import clips
from tests.tasks.pictures import pictures
from tests.tasks.sound.tones import write_tones

import qkv
from qkv.cli.main import main
from qkv.spec.files.overrides import override
from qkv.spec.files.shipped import shipped
from qkv.training.watch.results import stale

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RECIPES = list(shipped().values())
README = ROOT / "recipes" / "README.md"
TEXT = "the cat sat on the mat and the dog sat on the log, and neither of them saw the frog\n" * 640


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.txt"
    path.write_text(TEXT)
    return path


def tiny_table(recipe: qkv.Recipe, folder: Path) -> Path:
    """A table of 60 rows that fits the task, a small graph, or a folder of images, clips or sounds."""
    kind, processor = recipe.task.kind, recipe.data.processor
    if processor is not None and processor.kind in ("images", "image_codes", "image_patches"):
        return pictures(folder / "pictures", 30)
    if processor is not None and processor.of_sounds:
        return write_tones(folder / "tones")
    if processor is not None and processor.kind == "video":
        return clips(folder / "clips", 30)
    if kind == "node_classification":
        return nodes.write(folder)
    if kind == "forecasting":
        table = folder / "tiny.csv"
        table.write_text("step,value\n" + "".join(f"{i},{i % 24}\n" for i in range(1100)))
        return table
    path = folder / {"token_classification": "tiny.conll", "question_answering": "tiny.json"}.get(kind, "tiny.tsv")
    pairs = [(f"the cat number {i} sat on the mat", "up" if i % 2 else "down") for i in range(60)]
    if kind == "token_classification":
        rows = [
            "\n".join(f"{word}\t{'B-animal' if word == 'cat' else 'O'}" for word in text.split()) + "\n"
            for text, _ in pairs
        ]
    elif kind == "question_answering":
        asked = {"question": "who sat on the mat", "answers": [{"text": "cat", "answer_start": 4}]}
        paragraphs = [{"context": text, "qas": [{"id": str(i), **asked}]} for i, (text, _) in enumerate(pairs)]
        rows = [json.dumps({"data": [{"title": "cats", "paragraphs": paragraphs}]})]
    else:
        names = ("text", "label") if kind == "classification" else ("source", "target")
        rows = ["\t".join(names), *("\t".join(pair) for pair in pairs)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_it_describes_itself(path: Path) -> None:
    recipe = qkv.read_recipe(path)
    assert recipe.name == path.stem
    assert recipe.description.endswith(".")
    assert recipe.quick
    assert recipe.shown
    assert recipe.reached
    assert [path for path, _, _ in recipe.reached.figures] == list(recipe.shown)


SIZES: dict[str, dict[str, int]] = {
    "text": {"vocab_size": 65},
    "nodes": {"num_columns": 9},
    "patches": {"height": 28, "width": 28, "channels": 1},
    "image_codes": {"vocab_size": 266},
    "image_patches": {"features": 16, "starts": 10},
    "mel_convolutions": {"bins": 80},
    "tubelets": {"frames": 8, "height": 32, "width": 32, "channels": 1},
    "series_patches": {"features": 7, "covariates": 0, "steps": 336},
}
"""Sizes of each kind of front end that its data would determine."""


def test_it_is_built(path: Path) -> None:
    spec = qkv.read_recipe(path).model
    assert spec.frontend.kind in SIZES, f"tests/benchmarks/test_recipes.py, SIZES: no sizes of {spec.frontend.kind!r}"
    sizes = {"num_classes": 7, "horizon": 96, "channels": 1, "positions": 42}
    head = spec.head.changed(**{name: size for name, size in sizes.items() if name in type(spec.head).model_fields})
    encoder = spec.encoder and spec.encoder.changed(frontend=spec.encoder.frontend.changed(vocab_size=65))
    frontend = spec.frontend.changed(**SIZES[spec.frontend.kind])
    head = head.reading(frontend)
    with torch.device("meta"):
        model = qkv.build(spec.changed(frontend=frontend, encoder=encoder, head=head))
    assert sum(p.numel() for p in model.parameters()) == qkv.cost(model.spec).parameters


def test_its_figures_say_where_they_come_from(path: Path) -> None:
    recipe = qkv.read_recipe(path)
    assert recipe.result or recipe.typed
    assert all(other.source for other in recipe.published)
    for typed in recipe.typed:
        assert math.isfinite(typed.value)
        assert (typed.spread is None) == (len(typed.seeds) == 1)
        assert typed.minutes
        assert date.fromisoformat(typed.date)
        assert not (recipe.result and recipe.result.form == "full" and recipe.result.figure(typed.figure)), (
            "typed beside what was recorded"
        )


def test_its_result_is_of_this_recipe(path: Path) -> None:
    assert not stale(path)


def test_the_page_says_what_the_recipes_say() -> None:
    done = subprocess.run(
        [sys.executable, str(README.with_name("tables.py")), "--check"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(
        f"[{path.stem}](../src/qkv/recipes/{path.name})" in README.read_text(encoding="utf-8") for path in RECIPES
    )


def test_recipes_are_trained_and_recorded_by_one_command(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "tiny.yaml"
    model = "{width: 8, context_length: 8, blocks: [{branches: [gru]}]}"
    training = "{steps: 2, batch_size: 2, schedule: constant, validation: {batches: 1}}"
    recipe.write_text(
        f"# mine\ndata: {{source: {tiny}, tokenizer: characters}}\nmodel: {model}\ntraining: {training}\n"
    )
    script = runpy.run_path(str(README.with_name("record.py")))
    called: list[tuple[str, ...]] = []

    def in_process(*command: str) -> int:
        called.append(command)
        return main(command)

    script["record"].__globals__["_qkv"] = in_process
    asked = argparse.Namespace(seeds=[1, 2], quick=False, runs=tmp_path / "runs")
    for again in (False, True):
        assert script["record"](recipe, asked) == 0
        result = qkv.read_recipe(recipe).result
        assert result
        assert result.seeds == (1, 2)
        assert recipe.read_text().startswith("# mine\n")
        assert ("is finished: all 2 steps are done" in capsys.readouterr().err) == again
    assert [command[0] for command in called] == ["train", "train", "record"] * 2


def test_it_trains_in_its_short_form(path: Path, tiny: Path, tmp_path: Path) -> None:
    recipe = qkv.read_recipe(path, quick=True)
    reads_text = recipe.reads == "text"
    data = [f"data.source={tiny}"] if reads_text else []
    if recipe.reads == "examples":
        data = [f"data.source={tiny_table(recipe, tmp_path)}", "data.columns={}"]
    if recipe.task.kind == "forecasting":
        data.append("task.parts=[1000, 30, 30]")
    if recipe.data.processor is not None and recipe.data.processor.kind == "image_codes":
        before = override(qkv.read_recipe("fashion_mnist_vq"), [data[0], "training.steps=1"])
        qkv.train(before, tmp_path / "codes", on_event=lambda _: None)
        data.append(f"data.processor.run={tmp_path / 'codes'}")
    recipe = override(recipe, [*data, "start=null", "training.steps=4", "training.schedule.warmup=1"])
    recipe = override(recipe, ["training.batch_size=2", "training.validation.batches=1", "sample.max_new_tokens=2"])
    losses = [
        row["loss"]
        for row in qkv.train(recipe, tmp_path / "run", on_event=lambda _: None).metrics
        if row.get("loss") is not None
    ]
    assert len(losses) == 4
    assert all(map(math.isfinite, losses))
    assert (
        losses[-1] < losses[0] or not reads_text
    )  # what a task draws itself differs more from step to step than four steps change


def test_the_short_form_is_shorter(path: Path) -> None:
    full, short = qkv.read_recipe(path).training, qkv.read_recipe(path, quick=True).training
    assert short.steps <= full.steps / 5
