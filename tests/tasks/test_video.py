"""Classification of clips by tubelets: reading of clips, positions, and what unordered frames cannot tell."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tasks.clips import bars, clips
from tests.tasks.test_images import quiet
from torch.nn import functional as F

import qkv
from qkv.data.processors.video import VideoProcessor
from qkv.data.records.moving import DIRECTIONS, SIDE, moved
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.errors import SpecError, UserError
from qkv.spec.recipe import Recipe
from qkv.spec.signals.video import Video

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


def test_wrong_shapes_and_sizes_are_refused() -> None:
    with pytest.raises(UserError, match=r"clips have the shape \(2, 4, 3, 8, 9\), and the model reads \(B, frames"):
        model()(Signal(torch.zeros(2, 4, 3, 8, 9)))
    with pytest.raises(SpecError, match=r"frontend\.depth: tubelets of 6 frames and 3 pixels are larger"):
        model(depth=6)
    with pytest.raises(SpecError, match=r"'sinusoidal_2d' needs positions on a grid of 2 axes, .* on a grid of 3"):
        model(positions="sinusoidal_2d")
    with pytest.raises(SpecError, match="5 given, but the processor has 4; leave it out"):
        model().frontend.part.fitted(SPEC)
