"""Fine-tuning of image encoders: published folders and runs, their processors, and images of another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.cases.vit import LABELS, deit, dinov2, vit
from tests.tasks.test_images import folder, quiet, recipe_on
from torch.nn import functional as F
from transformers import (
    BitImageProcessorPil,
    DeiTForImageClassificationWithTeacher,
    Dinov2Model,
    ViTForImageClassification,
    ViTModel,
)

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.choosing.guessed import guess_task
from qkv.interop.save import covering
from qkv.runs.run import Run
from qkv.spec.signals.images import Images
from qkv.system.errors import UserError
from qkv.training.watch.events import Event, Notice

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SIZED = ["data.processor.height=20", "data.processor.width=12"]
STILL = ["training.steps=1", "training.optimizer.lr=1e-30", "training.optimizer.weight_decay=0.0"]
QUICK = ["wide=null", "training.minutes=null", "training.batch_size=4", "training.precision=fp32"]
PROCESSOR = Images(
    height=14,
    width=14,
    channels=3,
    mean=(0.48145466, 0.4578275, 0.40821073),
    deviation=(0.26862954, 0.26130258, 0.27577711),
    resize="crop",
    resized=16,
    resample="bicubic",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with photos and published encoders of random weights."""
    at = tmp_path_factory.mktemp("encoders")
    folder(at / "photos")
    for name, model in {
        "vit": ViTForImageClassification(vit(id2label=LABELS)),
        "deit": DeiTForImageClassificationWithTeacher(deit(id2label=LABELS)),
        "dinov2": Dinov2Model(dinov2()),
        "body": ViTModel(vit()),
    }.items():
        torch.nn.init.normal_(next(p for n, p in model.named_parameters() if "position_embeddings" in n))
        model.save_pretrained(at / name)
        size = {"height": 14, "width": 14}
        BitImageProcessorPil(size={"shortest_edge": 16}, crop_size=size).save_pretrained(at / name)
    return at


def begun(place: Path, name: str, out: Path, *changes: str, steps: int = 1) -> tuple[Run, list[str]]:
    """Run of the automatic recipe from ``name``, by default with a rate of 0, and its notices."""
    events: list[Event] = []
    given = [*(STILL if steps == 1 else [f"training.steps={steps}"]), *QUICK, *changes]
    recipe = automatic_task("classification", {"source": str(place / "photos")}, given, start=str(place / name))
    run = qkv.train(recipe, out, on_event=events.append)
    return run, [event.text for event in events if isinstance(event, Notice)]


@pytest.mark.parametrize(
    ("name", "pooling"), [("vit", "first"), ("deit", None), ("dinov2", ("first", "mean_rest")), ("body", "first")]
)
def test_a_published_encoder_is_tuned_with_its_own_processor(place: Path, name: str, pooling: Any) -> None:
    recipe = automatic_task("classification", {"source": str(place / "photos")}, start=str(place / name))
    processor = recipe.data.processor
    assert isinstance(processor, Images)
    assert processor.augment
    assert processor.changed(augment=()) == PROCESSOR
    assert recipe.start.checkpoint == str(place / name)
    assert getattr(recipe.model.head, "pooling", None) == pooling
    assert recipe.wide is not None
    assert not recipe.candidates


@pytest.mark.parametrize("adapt", ["head", "lora(2)"])
def test_the_stack_can_be_frozen(place: Path, adapt: str) -> None:
    source = {"source": str(place / "photos")}
    whole, part = (automatic_task("classification", source, start=str(place / "vit"), adapt=a) for a in (None, adapt))
    assert part.training.adapt.kind == adapt.partition("(")[0]
    assert part.training.optimizer.lr > whole.training.optimizer.lr
    assert part.model == whole.model


def test_a_folder_of_images_is_classified_unless_said_otherwise(place: Path) -> None:
    assert guess_task({"source": str(place / "photos")}) == "classification"


def test_it_learns_and_keeps_its_stack(place: Path, tmp_path: Path) -> None:
    still, said = begun(place, "vit", tmp_path / "still")
    theirs = ViTForImageClassification.from_pretrained(place / "vit").state_dict()
    ours = still.model.state_dict()
    assert torch.equal(ours["frontend.positions.table"], theirs["vit.embeddings.position_embeddings"][0])
    assert any("its head is initialised at random" in sentence for sentence in said)
    run, _ = begun(place, "vit", tmp_path / "run", "training.optimizer.lr=3e-3", steps=30)
    assert qkv.evaluate(run)["accuracy"] == 100
    assert [row["answer"] for row in qkv.predict(qkv.load(run.folder), str(place / "photos/dark/0.png"))] == ["dark"]


@pytest.mark.parametrize("name", ["vit", "dinov2", "deit"])
def test_positions_of_another_size_are_resampled(place: Path, name: str, tmp_path: Path) -> None:
    run, said = begun(place, name, tmp_path / "run", *SIZED)
    processor = run.vocabulary.processors["input"]
    assert isinstance(processor, Images)
    assert (processor.height, processor.width, processor.resized, processor.mean) == (20, 12, 23, PROCESSOR.mean)
    assert any("resampled from a grid of 3 × 3 to 5 × 3" in sentence for sentence in said)
    kinds = {"vit": ViTModel, "dinov2": Dinov2Model, "deit": DeiTForImageClassificationWithTeacher}
    theirs = kinds[name].from_pretrained(place / name).eval()
    table = next(p for n, p in theirs.named_parameters() if "position_embeddings" in n).detach()[0]
    leading = 2 if name == "deit" else 1
    grid = table[leading:].unflatten(0, (3, 3)).permute(2, 0, 1)[None]
    wanted = F.interpolate(grid, (5, 3), mode="bicubic", align_corners=False)[0].permute(1, 2, 0).flatten(0, 1)
    own = run.model.state_dict()["frontend.positions.table"]
    torch.testing.assert_close(own, torch.cat((table[:leading], wanted)), rtol=0, atol=1e-6)
    embeddings = next(module for n, module in theirs.named_modules() if n.endswith("embeddings"))
    pixels = torch.zeros(1, 3, 20, 12)
    published = embeddings.interpolate_pos_encoding(torch.zeros(1, 15 + leading, table.shape[1]), 20, 12)[0]
    torch.testing.assert_close(own, published, rtol=0, atol=1e-4)
    assert run.model(pixels)[0].shape == (1, 2)
    assert name == "dinov2" or covering(run.model.spec) is not None  # DINOv2 has square images


def test_a_run_of_another_size_is_resampled_too(place: Path, tmp_path: Path) -> None:
    photos = place / "photos"
    first = qkv.train(recipe_on(photos), tmp_path / "run", on_event=quiet)
    larger = {"kind": "images", "height": 20, "width": 20}
    changed = recipe_on(photos, data={"processor": larger}, start=str(tmp_path / "run"))
    second = qkv.train(qkv.override(changed, STILL), tmp_path / "larger", on_event=quiet)
    old, new = (run.model.state_dict()["frontend.positions.table"] for run in (first, second))
    assert (len(old), len(new)) == (9, 25)
    grid = old.unflatten(0, (3, 3)).permute(2, 0, 1)[None]
    wanted = F.interpolate(grid, (5, 5), mode="bicubic", align_corners=False)[0].permute(1, 2, 0).flatten(0, 1)
    torch.testing.assert_close(new, wanted, rtol=0, atol=1e-6)
    fitted = [run.vocabulary.processors["input"] for run in (first, second)]
    assert fitted[1] == fitted[0].changed(height=20, width=20)


def test_a_recipe_needs_only_its_start(place: Path, tmp_path: Path) -> None:
    described = {"data": str(place / "photos"), "task": "classification", "start": str(place / "vit")}
    recipe = qkv.Recipe.parse({"name": "tuned", **described, "training": {"batch_size": 4}})
    run = qkv.train(qkv.override(recipe, STILL), tmp_path / "run", on_event=quiet)
    assert run.vocabulary.processors["input"] == PROCESSOR
    again = qkv.train(qkv.override(recipe, [*STILL, "training.steps=2"]), tmp_path / "run", on_event=quiet)
    assert again.recipe.data.processor == PROCESSOR


@pytest.mark.parametrize(("task", "head"), [("regression", "regression"), ("multilabel", "labels")])
def test_other_targets_are_tuned_too(place: Path, task: str, head: str) -> None:
    values = {"regression": lambda name, i: i, "multilabel": lambda name, i: f"{name};all"}[task]
    named = [(name, i) for name in ("dark", "bright") for i in range(12)]
    rows = [f"photos/{name}/{i}.png,{values(name, i)}" for name, i in named]
    columns = "image,value" if task == "regression" else "image,labels"
    (place / f"{task}.csv").write_text("\n".join([columns, *rows]))
    recipe = automatic_task(task, {"source": str(place / f"{task}.csv")}, start=str(place / "vit"))
    assert (recipe.task.head, recipe.model.head.kind, recipe.model.frontend.kind) == (head, head, "patches")


def test_starts_of_other_signals_are_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\n" + "good,a\nbad,b\n" * 10)
    with pytest.raises(UserError, match=r"is read as text, but the model '.*' reads images"):
        automatic_task("classification", {"source": str(tmp_path / "texts.csv")}, start=str(place / "vit"))
    (place / "body" / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"holds no preprocessor_config\.json, so it is not known how images are"):
        qkv.train(
            qkv.Recipe.parse({"data": str(place / "photos"), "task": "classification", "start": str(place / "body")}),
            tmp_path / "run",
            on_event=quiet,
        )
