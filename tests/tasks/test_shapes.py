"""Classification of shapes by the points of their contours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from tests.tasks.test_images import quiet

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.data.processors.contours import ContourProcessor
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.errors import SpecError
from qkv.spec.files.overrides import Assignment
from qkv.spec.recipe import Recipe
from qkv.spec.signals.contours import Contours
from qkv.system.errors import UserError
from qkv.tasks.registry import task_of_recipe


def shapes(folder: Path, each: int = 14) -> Path:
    rng = np.random.default_rng(0)
    for name in ("circle", "square"):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            left, top, side = (int(value) for value in rng.integers((2, 2, 14), (12, 12, 20)))
            image = Image.new("RGB" if number % 2 else "RGBA", (36, 36), "white" if number % 2 else None)
            draw = ImageDraw.Draw(image)
            (draw.ellipse if name == "circle" else draw.rectangle)((left, top, left + side, top + side), fill="navy")
            image.save(folder / name / f"{number}.png")
    return folder


def test_shapes_are_classified_by_their_contours(tmp_path: Path) -> None:
    photos = shapes(tmp_path / "shapes")
    recipe = Recipe.parse(
        {
            "name": "shapes",
            "data": {"source": str(photos), "processor": "contours(16, sampling=uniform)"},
            "task": "classification",
            "model": {
                "width": 16,
                "frontend": "contour_points",
                "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
                "head": "classification",
            },
            "training": {"steps": 40, "batch_size": 8, "optimizer": "adamw(lr=1e-2)", "validation": {"every": 20}},
        }
    )
    run = qkv.train(recipe, tmp_path / "run", on_event=quiet)
    assert qkv.evaluate(run)["accuracy"] == 100
    answers = qkv.predict(qkv.load(run.folder), str(photos / "square/1.png"), str(photos / "circle/2.png"))
    assert [found["answer"] for found in answers] == ["square", "circle"]
    assert run.model.spec.frontend.num_positions == 16


def test_contours_are_chosen_where_they_are_named(tmp_path: Path) -> None:
    source = {"source": str(shapes(tmp_path / "shapes"))}
    given = ["data.processor=contours", "data.processor.points=12"]
    recipe = automatic_task("classification", source, given)
    assert recipe.data.processor == Contours(points=12)
    assert recipe.candidates.keys() == {"transformer", "convolution"}
    named = automatic_task("classification", {**source, "processor": "contours(12)"})
    assert (named.data, named.model) == (recipe.data, recipe.model)
    for changes in recipe.candidates.values():
        changed = qkv.override(recipe, [Assignment.of(*change) for change in changes.items()])
        built = qkv.build(task_of_recipe(changed).sized(changed).model)
        assert built(torch.zeros(1, 12, 3))[0].shape == (1, 2)
    short = automatic_task("classification", source, [*given, "training.steps=2", "training.minutes=null"], quick=True)
    run = qkv.train(short, tmp_path / "run", on_event=quiet)
    assert run.evaluation is not None
    assert "accuracy_of_silhouettes" in run.evaluation["splits"]["validation"]["figures"]


def test_position_and_size_of_a_shape_do_not_matter() -> None:
    processor, found = ContourProcessor(Contours(points=24)), []
    for left, top, scale in ((4, 4, 1), (40, 20, 1), (10, 30, 2)):
        field = np.zeros((100, 100), np.uint8)
        field[top : top + 20 * scale, left : left + 10 * scale] = 255
        found.append(processor.encode(field))
    assert np.allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[2][:, :2]).max() == pytest.approx(1)
    assert found[0][0, 2] == found[0][:, 2].sum() == 1


def test_transparency_tells_the_shape_whatever_the_colours(tmp_path: Path) -> None:
    image = Image.new("RGBA", (40, 40))
    ImageDraw.Draw(image).ellipse((5, 5, 30, 30), fill=(255, 255, 255, 255), outline=(0, 0, 0, 255))
    image.save(tmp_path / "white.png")
    dark = np.asarray(image.getchannel("A"))
    processor = ContourProcessor(Contours(points=16))
    assert np.allclose(processor.encode(str(tmp_path / "white.png")), processor.encode(dark), atol=1e-6)


def test_pictures_without_a_shape_and_wrong_sizes_are_refused() -> None:
    with pytest.raises(Unusable, match="shows no shape: all of its pixels are equal"):
        ContourProcessor(Contours()).encode(np.full((9, 9), 80, np.uint8))
    model = {"width": 8, "frontend": "contour_points(points=16)", "head": "classification(2)"}
    with pytest.raises(UserError, match=r"points are float32 of the shape \(2, 16, 4\); give floats"):
        qkv.build(qkv.Model.parse(model))(Signal(torch.zeros(2, 16, 4)))
    with pytest.raises(SpecError, match="16 given, but the processor has 64 points"):
        qkv.Model.parse(model).frontend.fitted(Contours())
