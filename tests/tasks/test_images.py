"""Tasks with one output per row, on images: folders, tables and arrays, from training to prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.layers.features import features_of
from qkv.models.wide import Features as FeaturesPath
from qkv.runs.inference.inputs import read_inputs
from qkv.runs.inference.predict import predict
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.signals.images import Images
from qkv.system.errors import UserError
from qkv.tasks.registry import task_of_recipe

RNG = np.random.default_rng(0)
MODEL: dict[str, Any] = {
    "width": 16,
    "frontend": {"kind": "patches", "patch": 4},
    "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(16)"]}],
    "head": "classification",
}
TRAINING: dict[str, Any] = {
    "steps": 4,
    "batch_size": 6,
    "schedule": "constant",
    "optimizer": {"kind": "adamw", "lr": 1e-2},
    "validation": {"every": 2},
}


def picture(shade: int) -> np.ndarray:
    return (RNG.integers(0, 60, (12, 12, 3)) + shade).astype(np.uint8)


def folder(at: Path, each: int = 12, **shades: int) -> Path:
    for name, shade in (shades or {"bright": 190, "dark": 0}).items():
        (at / name).mkdir(parents=True)
        for number in range(each):
            Image.fromarray(picture(shade)).save(at / name / f"{number}.png")
    return at


def recipe_on(source: Path, **changes: Any) -> Recipe:
    data = {"source": str(source), "processor": "images", **changes.pop("data", {})}
    return Recipe.parse(
        {"name": "shades", "data": data, "task": "classification", "model": MODEL, "training": TRAINING, **changes}
    )


def quiet(event: object) -> None:
    """Show no progress."""


def test_a_folder_of_folders_is_learned_evaluated_and_predicted(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    (photos / "dark" / "notes.txt").write_text("no image")
    recipe = qkv.override(recipe_on(photos), ["training.steps=40"])
    run = qkv.train(recipe, tmp_path / "run", on_event=quiet)
    assert qkv.evaluate(run)["accuracy"] == 100
    loaded = qkv.load(tmp_path / "run")
    assert loaded.vocabulary.labels == ("bright", "dark")
    first, second = qkv.predict(loaded, str(photos / "bright" / "0.png"), picture(0))
    assert (first["answer"], second["answer"]) == ("bright", "dark")
    assert qkv.evaluate(loaded, data=str(photos))["accuracy"] == 100


def test_a_folder_that_is_split_already_keeps_its_splits(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for split, each in (("train", 6), ("valid", 2), ("test", 3)):
        folder(photos / split, each)
    dataset = task_of_recipe(recipe_on(photos)).open(recipe_on(photos))
    counts = {split: sum(batch.num_targets for batch in dataset.rows(split)) for split in dataset.splits}
    assert counts == {"train": 12, "validation": 4, "test": 6}


def test_a_table_names_files_beside_it(tmp_path: Path) -> None:
    folder(tmp_path / "photos", 4)
    rows = [f"photos/{name}/{i}.png,{name}" for name in ("bright", "dark") for i in range(4)]
    (tmp_path / "table.csv").write_text("\n".join(["picture,kind", *rows]))
    recipe = recipe_on(tmp_path / "table.csv", data={"columns": {"label": "kind"}})
    dataset = task_of_recipe(recipe).open(recipe)
    assert dataset.recipe.model.frontend.grid == (3, 3)
    assert any("'picture' is taken as image" in note for note in dataset.notes)


def test_unreadable_files_are_counted_and_listed(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    (photos / "dark" / "0.png").write_bytes(b"")
    (photos / "dark" / "1.png").write_bytes((photos / "dark" / "2.png").read_bytes()[:150])
    dataset = task_of_recipe(recipe_on(photos)).open(recipe_on(photos))
    notes = "; ".join(dataset.notes)
    assert "0.png is not an image" in notes
    assert "1.png cannot be decoded" in notes
    refusing = recipe_on(photos, data={"bad_rows": "refuse"})
    with pytest.raises(UserError, match="cannot be used"):
        task_of_recipe(refusing).open(refusing)


def test_a_resumed_run_sees_the_same_changed_images(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    processor = {"kind": "images", "augment": ["crop(2)", "flip", "erase", "mixup", "cutmix"]}
    recipe = recipe_on(photos, data={"processor": processor})
    whole = qkv.train(recipe, tmp_path / "whole", on_event=quiet)
    qkv.train(qkv.override(recipe, ["training.steps=2"]), tmp_path / "parts", on_event=quiet)
    parts = qkv.train(recipe, tmp_path / "parts", on_event=quiet)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, parts.model.state_dict()[name]), name


def test_the_loss_of_a_mixed_batch_is_that_of_both_targets(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    recipe = recipe_on(photos, data={"processor": {"kind": "images", "augment": ["mixup(1.0)"]}})
    task = task_of_recipe(recipe)
    dataset = task.open(recipe)
    batch, model = dataset.batch(0), qkv.build(dataset.recipe.model)
    logits = model(batch.input)[0].log_softmax(-1)
    rows, share = torch.arange(len(logits)), batch.extras["share"]
    expected = -(share * logits[rows, batch.targets] + (1 - share) * logits[rows, batch.extras["partners"]]).sum()
    torch.testing.assert_close(task.summed_loss(model, batch), expected)


def test_regression_reads_images_and_mixes_values(tmp_path: Path) -> None:
    values = RNG.random(20)
    rows = [{"image": picture(int(150 * value)).tolist(), "value": float(value)} for value in values]
    model = {**MODEL, "head": "regression"}
    processor = {"kind": "images", "augment": ["mixup(1.0)"]}
    given = {"name": "shade", "data": {"source": "none", "processor": processor}, "task": "regression"}
    recipe = Recipe.parse({**given, "model": model, "training": {**TRAINING, "steps": 60}})
    run = qkv.train(recipe, tmp_path / "run", data=rows, on_event=quiet)
    found = qkv.evaluate(run)
    assert found["rmse"] < 0.5 * found["rmse_of_mean"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"processor": None}}, "the front end 'patches' reads images; give data.processor=images"),
        ({"model": {**MODEL, "frontend": "text"}}, "the front end 'text' does not read images; use one of patches"),
        ({"task": "translation"}, "the task 'translation' reads text; leave it out"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        recipe_on(tmp_path, **changes)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match="holds no image; name a file, or a folder with one subfolder"):
        task_of_recipe(recipe_on(tmp_path / "photos")).open(recipe_on(tmp_path / "photos"))


def test_images_in_memory_are_kept_with_the_run(tmp_path: Path) -> None:
    labels = ["bright", "dark"] * 8
    arrays = [picture(190 if label == "bright" else 0) for label in labels]
    rows = {"image": [Image.fromarray(each) if i % 2 else each for i, each in enumerate(arrays)], "label": labels}
    recipe = qkv.override(recipe_on(Path("none")), ["training.steps=40"])
    run = qkv.train(recipe, tmp_path / "run", data=rows, on_event=quiet)
    assert [found["answer"] for found in qkv.predict(run, Image.fromarray(picture(190)))] == ["bright"]
    assert [found["answer"] for found in qkv.predict(run, [picture(0), picture(190)])] == ["dark", "bright"]
    assert qkv.evaluate(qkv.load(tmp_path / "run"))["accuracy"] == 100


def test_the_report_shows_images_and_answers(tmp_path: Path) -> None:
    run = qkv.train(recipe_on(folder(tmp_path / "photos")), tmp_path / "run", on_event=quiet)
    page = (run.folder / "report.html").read_text()
    assert page.count('src="data:image/png;base64') >= 2
    assert "truth: dark" in page
    found = run.evaluation
    assert found is not None
    sections = {section["title"]: section for section in found["splits"]["validation"]["sections"]}
    heated = sections["Attention over the picture"]["pictures"]
    assert page.count('class="heat"') == len(heated)
    assert all(len(each["heat"]) == 3 and max(map(max, each["heat"])) == 1 for each in heated)


def test_a_model_without_attention_shows_none(tmp_path: Path) -> None:
    model = {**MODEL, "blocks": [{"branches": ["token_mlp", "feed_forward(16)"]}]}
    run = qkv.train(recipe_on(folder(tmp_path / "photos"), model=model), tmp_path / "run", on_event=quiet)
    assert "Attention over the picture" not in (run.folder / "report.html").read_text()


def test_rows_that_cannot_be_read_are_listed_and_others_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = folder(tmp_path / "photos")
    run = qkv.train(recipe_on(photos), tmp_path / "run", on_event=quiet)
    (tmp_path / "new.csv").write_text("image\nphotos/dark/0.png\nphotos/none.png\n")
    found = read_inputs(run, str(tmp_path / "new.csv"), {})
    assert [row["image"] for row in found.kept] == ["photos/dark/0.png"]
    opened = Image.open
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("the image is decoded twice"))
    assert [answer["answer"] for answer in predict(run, found.rows)] == ["dark"]
    monkeypatch.setattr(Image, "open", opened)
    assert "1 of 2 rows" in found.notes[-1]
    assert "there is no file" in found.notes[-1]


def test_a_recipe_for_a_folder_lets_a_network_compete(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    recipe = automatic_task("classification", {"source": str(photos)})
    assert recipe.candidates.keys() == {"transformer", "patches", "convolution"}
    processor = recipe.data.processor
    assert isinstance(processor, Images)
    assert (processor.height, processor.width, processor.channels) == (12, 12, 3)
    for name, changes in recipe.candidates.items():
        given = [f"{path}={json.dumps(value)}" for path, value in changes.items()]
        model = task_of_recipe(recipe).sized(qkv.override(recipe, given)).model
        assert qkv.build(model)(torch.zeros(1, 3, 12, 12))[0].shape == (1, 2), name
    smaller = ["model.width=32", "data.processor.height=8", "data.processor.width=8"]
    fixed = automatic_task("classification", {"source": str(photos)}, smaller)
    assert not fixed.candidates
    assert task_of_recipe(fixed).sized(fixed).model.frontend.grid == (2, 2)


def test_the_wide_path_reads_pixels_and_its_outputs_are_joined(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos", 20)
    recipe = qkv.override(recipe_on(photos), ["wide=features", "training.steps=20"])
    run = qkv.train(recipe, tmp_path / "run", on_event=quiet)
    wide = run.wide
    assert isinstance(wide, FeaturesPath)
    assert wide.table.shape == (12 * 12 * 3, 2)
    dataset = task_of_recipe(run.recipe).open(run.recipe, run.vocabulary)
    batch = next(dataset.rows("validation"))
    features = features_of(batch.input)
    assert features is not None
    outputs = ((features.values - wide.mean) / wide.deviation) @ wide.table + wide.bias
    assert (outputs.argmax(-1) == batch.targets).all()
    torch.testing.assert_close(wide(batch.input), outputs)
    assert qkv.evaluate(qkv.load(tmp_path / "run"))["accuracy"] == 100


def test_words_of_an_image_cannot_be_left_out(tmp_path: Path) -> None:
    run = qkv.train(recipe_on(folder(tmp_path / "photos")), tmp_path / "run", on_event=quiet)
    with pytest.raises(UserError, match="the influence of words is only defined for texts, but this run reads images"):
        qkv.explain(run, "photo.png")
