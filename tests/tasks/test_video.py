"""Classification of clips by tubelets: reading of clips, positions, and what unordered frames cannot tell."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tasks.clips import bars, clips, write_frames
from tests.tasks.test_images import quiet
from torch.nn import functional as F

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.choosing.guessed import with_processor
from qkv.data.processors.video import VideoProcessor
from qkv.data.records.images.moving import DIRECTIONS, SIDE, moved
from qkv.data.records.open import open_records
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.signals.video import Video
from qkv.spec.tasks import Classification
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task, task_of_recipe

RNG = np.random.default_rng(0)
SPEC = Video(frames=4, height=6, width=8, channels=1, mean=(0.5,), deviation=(0.25,), resample="nearest")
FRONTEND = {"kind": "tubelets", "depth": 2, "patch": 3}
SIZES = {"frames": 5, "height": 8, "width": 9, "channels": 3}


def model(**frontend: Any) -> Any:
    described = {
        "width": 12,
        "frontend": {**FRONTEND, **SIZES, **frontend},
        "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
        "head": "classification(4)",
    }
    return qkv.build(qkv.Model.parse(described))


def recipe(source: Path, positions: str) -> Recipe:
    return Recipe.parse(
        {
            "name": "bars",
            "data": {"source": str(source), "processor": "video"},
            "task": "classification",
            "model": {
                "width": 24,
                "frontend": {"kind": "tubelets", "depth": 4, "patch": 8, "positions": positions},
                "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(48)"]}] * 2,
                "head": "classification",
            },
            "training": {
                "steps": 150,
                "batch_size": 16,
                "schedule": "constant",
                "optimizer": {"kind": "adamw", "lr": 2e-3},
                "validation": {"every": 50},
            },
        }
    )


def test_tubelets_are_a_convolution_over_time_rows_and_columns() -> None:
    frontend = model(positions="none").frontend
    pixels = torch.randn(2, 5, 3, 8, 9)
    weight = frontend.map.weight.view(12, 2, 3, 3, 3).transpose(1, 2)
    wanted = F.conv3d(pixels.transpose(1, 2), weight, frontend.map.bias, stride=(2, 3, 3))
    found, context = frontend.embed(Signal(pixels))
    torch.testing.assert_close(found, wanted.flatten(2).mT, rtol=1e-5, atol=1e-5)
    assert context.grid == ((2, 2, 3), 0)
    assert found.shape[1] == frontend.part.num_positions == 12


def test_sinusoids_of_frames_rows_and_columns() -> None:
    def plain(place: int, width: int) -> list[float]:
        angles = [place / 10000 ** (2 * (i // 2) / width) for i in range(width)]
        return [np.sin(a) if i % 2 == 0 else np.cos(a) for i, a in enumerate(angles)]

    for ordered, widths in ((True, (4, 4, 4)), (False, (0, 6, 6))):
        frontend = model(positions={"kind": "sinusoidal_3d", "ordered": ordered}).frontend
        _, context = frontend.embed(Signal(torch.zeros(1, 5, 3, 8, 9)))
        vectors = frontend.positions.vectors(context, torch.float64)[0]
        for i, place in enumerate(np.ndindex(2, 2, 3)):
            wanted = [x for at, width in zip(place, widths, strict=True) for x in plain(at + 1, width)]
            np.testing.assert_allclose(vectors[i], wanted, atol=1e-6)


def test_clips_of_every_form_give_the_same_frames(tmp_path: Path) -> None:
    clip = RNG.integers(0, 2, (7, 6, 8), dtype=np.uint8) * 255
    frames = [Image.fromarray(frame) for frame in clip]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:], disposal=1)
    np.save(tmp_path / "clip.npy", clip)
    (tmp_path / "frames").mkdir()
    for number, frame in enumerate(frames):
        frame.save(tmp_path / "frames" / f"{number:03}.png")
    processor = VideoProcessor(SPEC)
    wanted = clip[[0, 2, 4, 6], None]
    files = [str(tmp_path / name) for name in ("clip.gif", "clip.npy", "frames")]
    for value in (clip, clip[..., None], clip / 255, clip.tolist(), frames, *files):
        assert np.array_equal(processor.encode(value), wanted), type(value)
    assert processor.encode(clip[:2]).shape == (4, 1, 6, 8)
    signal = processor.signal([wanted, wanted]).values
    torch.testing.assert_close(signal[1], (torch.from_numpy(wanted) / 255 - 0.5) / 0.25)
    fitted = VideoProcessor(Video()).fitted([clip, clip, clip[:3]])
    assert (fitted.frames, fitted.height, fitted.width, fitted.channels) == (7, 6, 8, 1)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("none.npy", "there is no file none.npy"),
        ("text.npy", "text.npy is not an array file"),
        ("empty", "empty has no frames"),
        ("cut.gif", "cut.gif"),
        (np.zeros((3, 4)), r"the clip has the shape \(3, 4\), not \(frames, height, width\)"),
        ([], "the clip has no frames"),
    ],
    ids=str,
)
def test_what_is_no_clip_is_named(value: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.npy").write_text("words")
    Path("empty").mkdir()
    whole = clips(tmp_path / "clips", 1) / "left" / "0.gif"
    Path("cut.gif").write_bytes(whole.read_bytes()[:60])
    with pytest.raises(Unusable, match=sentence):
        VideoProcessor(SPEC).encode(value)


def test_a_garment_moves_in_its_direction() -> None:
    image = RNG.integers(0, 256, (28, 28), dtype=np.uint8)
    labels = set()
    for seed in range(40):
        clip, label = moved(image, seed)
        labels.add(label)
        assert clip.shape == (8, SIDE, SIDE)
        steps = [speed * np.array(DIRECTIONS[label]) for speed in (1, 2)]
        assert any(all(np.array_equal(np.roll(a, step, (0, 1)), b) for a, b in pairwise(clip)) for step in steps)
    assert labels == set(DIRECTIONS)


def test_ordered_frames_tell_the_direction_and_unordered_ones_do_not(tmp_path: Path) -> None:
    source = clips(tmp_path / "clips")
    run = qkv.train(recipe(source, "sinusoidal_3d"), tmp_path / "run", on_event=quiet)
    assert qkv.evaluate(run)["accuracy"] >= 90
    answers = qkv.predict(qkv.load(run.folder), str(source / "left" / "3.gif"), str(source / "right" / "3.gif"))
    assert [found["answer"] for found in answers] == ["left", "right"]
    assert "data:image/gif;base64" in (run.folder / "report.html").read_text()
    blind = qkv.build(
        qkv.override(run.recipe, ["model.frontend.depth=1", "model.frontend.positions.ordered=false"]).model
    )
    processor = VideoProcessor(run.vocabulary.processors["input"])
    forward = processor.signal([processor.encode(bars(1, 3))])
    backward = Signal(forward.values.flip(1))
    torch.testing.assert_close(blind(forward)[0], blind(backward)[0])


def kind_of(source: Path, **fields: Any) -> str | None:
    found = with_processor(Data(source=str(source), **fields), Classification()).processor
    return found and found.kind


def test_data_of_clips_are_told_from_pictures(tmp_path: Path) -> None:
    frames, images = write_frames(tmp_path / "frames", first=1), tmp_path / "images"
    for name in ("left", "right"):
        (images / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(RNG.integers(0, 256, (5, 5), np.uint8)).save(images / name / f"{number}.png")
    arrays = tmp_path / "arrays" / "left"
    arrays.mkdir(parents=True)
    np.save(arrays / "0.npy", bars(1, 0))
    many = np.stack([bars(1, place) for place in range(4)])
    np.savez(tmp_path / "clips.npz", clips=many, label=["a", "b", "a", "b"])
    np.savez(tmp_path / "images.npz", images=many[..., None][:, 0], label=["a", "b", "a", "b"])
    assert kind_of(clips(tmp_path / "animations", 2)) == kind_of(frames) == kind_of(arrays.parent) == "video"
    assert kind_of(tmp_path / "clips.npz") == "video"
    assert kind_of(images) == kind_of(tmp_path / "images.npz") == "images"
    assert kind_of(images, columns={"image": "image"}) == "images"
    (tmp_path / "split").mkdir()
    images.rename(tmp_path / "split" / "train")
    assert kind_of(tmp_path / "split") == "images", "numbered pictures of a class are no frames"
    (frames / "left" / "clip0" / "frame2.png").unlink()
    assert kind_of(frames) == "images", "frames without gaps are a clip"


def test_folders_of_frames_are_values_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    source = write_frames(tmp_path / "frames", each=3)
    for i in range(4, 12):  # frame10 follows frame9
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(source / "left" / "clip0" / f"frame{i}.png")
    task = build_task(Classification(), Data(source=str(source), processor=Video()))
    records = open_records(Data(source=str(source)), task.roles)  # type: ignore[attr-defined]
    rows = [row for part in records.splits.values() for row in part]
    assert sorted(row["image"] for row in rows) == sorted(map(str, source.glob("*/clip*")))
    assert {row["label"] for row in rows} == {"left", "right"}
    encoded = VideoProcessor(SPEC.changed(frames=12, height=8)).encode(str(source / "left" / "clip0"))
    assert encoded[4:, 0, 0, 0].tolist() == list(range(4, 12))


def test_a_folder_of_clips_is_enough(tmp_path: Path) -> None:
    source = {"source": str(clips(tmp_path / "clips", 12))}
    recipe = automatic_task("classification", source)
    assert isinstance(recipe.data.processor, Video)
    assert (recipe.data.processor.frames, recipe.data.processor.height) == (4, 8)
    assert recipe.candidates.keys() == {"tubelets", "long_tubelets", "frames_without_order"}
    for changes in recipe.candidates.values():
        given = [f"{path}={value}" for path, value in changes.items()]
        built = qkv.build(task_of_recipe(recipe).sized(qkv.override(recipe, given)).model)
        assert built(torch.zeros(1, 4, 3, 8, 8))[0].shape == (1, 2)
    short = automatic_task("classification", source, ["training.steps=2", "training.minutes=null"], quick=True)
    run = qkv.train(short, tmp_path / "run", on_event=quiet)
    assert run.evaluation is not None
    evaluation = run.evaluation["splits"]["validation"]
    assert "accuracy_of_pixels" in evaluation["figures"]
    heats = [section for section in evaluation["sections"] if section["title"].startswith("Attention")]
    assert len(heats[0]["pictures"]) % 2 == 0, "two positions in time"
    first = heats[0]["pictures"][0]
    assert (np.shape(first["heat"]), first["covered"]) == ((4, 4), [1, 1])
    assert first["caption"].endswith(", 1 of 2")


def test_wrong_shapes_and_sizes_are_refused() -> None:
    with pytest.raises(UserError, match=r"clips have the shape \(2, 4, 3, 8, 9\), and the model reads \(B, frames"):
        model()(Signal(torch.zeros(2, 4, 3, 8, 9)))
    with pytest.raises(SpecError, match=r"frontend\.depth: tubelets of 6 frames and 3 pixels are larger"):
        model(depth=6)
    with pytest.raises(SpecError, match=r"'sinusoidal_2d' needs positions on a grid of 2 axes, .* on a grid of 3"):
        model(positions="sinusoidal_2d")
    with pytest.raises(SpecError, match="5 given, but the processor has 4; leave it out"):
        model().frontend.part.fitted(SPEC)
