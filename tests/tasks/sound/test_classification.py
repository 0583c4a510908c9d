"""Tests of the classification of sounds: folders, tables and sounds in memory, recipes and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tasks.sound.tones import quiet

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.data.processors.processor import recognised
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.spec.recipe import Recipe
from qkv.spec.signals.sound import LogMel
from qkv.system.errors import UserError

RATE = 8000


def tone(name: str, number: int) -> np.ndarray:
    hertz = {"low": 300, "high": 2500}[name] + 7 * number
    return (0.4 * np.sin(2 * np.pi * hertz * np.arange(1600 + 10 * number) / RATE)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of tones with a subfolder for each class, and a table of them."""
    root = tmp_path_factory.mktemp("sounds")
    lines = ["file,label,speaker"]
    for name in ("low", "high"):
        (root / "clips" / name).mkdir(parents=True)
        for number in range(24):
            path = root / "clips" / name / f"{number}.wav"
            path.write_bytes(sound_bytes(Sound(tone(name, number), RATE)))
            lines.append(f"clips/{name}/{number}.wav,{name},{number % 4}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    return root


def test_folders_are_recognised_by_what_most_files_are(folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    assert isinstance(recognised(str(folder / "clips"), lambda: None), LogMel)
    (tmp_path / "a").mkdir()
    for i in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / "a" / f"{i}.png")
    (tmp_path / "a" / "one.wav").write_bytes(sound_bytes(Sound(tone("low", 1), RATE)))
    images = recognised(str(tmp_path), lambda: None)
    assert images is not None
    assert images.kind == "images"


def test_a_folder_trains_and_predicts(folder: Path, tmp_path: Path) -> None:
    recipe = Recipe.parse(
        {
            "name": "tones",
            "data": {
                "source": str(folder / "clips"),
                "processor": {"kind": "log_mel", "bins": 16, "changes": ["shift"]},
            },
            "task": "classification",
            "model": {
                "width": 16,
                "frontend": "mel_convolutions",
                "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
                "head": "classification",
            },
            "training": {"steps": 30, "batch_size": 8, "optimizer": "adamw(lr=1e-2)", "validation": {"every": 30}},
        }
    )
    run = qkv.train(recipe, tmp_path / "run", on_event=quiet)
    processor = run.vocabulary.processor
    assert isinstance(processor, LogMel)
    assert processor.rate == RATE
    answers = qkv.predict(run, str(folder / "clips" / "low" / "3.wav"), str(folder / "clips" / "high" / "3.wav"))
    assert [answer["answer"] for answer in answers] == ["low", "high"]
    assert qkv.predict(run, {"array": tone("high", 5), "sampling_rate": RATE})[0]["answer"] == "high"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<audio" in page
    assert "data:audio/wav;base64," in page
    with pytest.raises(UserError, match=r"there is no file absent\.wav"):
        qkv.predict(run, "absent.wav")


def test_a_table_holds_speakers_out(folder: Path) -> None:
    recipe = automatic_task("classification", {"source": str(folder / "table.csv"), "split": {"group": "speaker"}})
    assert recipe.data.columns["sound"] == "file"
    assert isinstance(recipe.data.processor, LogMel)
    assert recipe.data.processor.changes
    assert set(recipe.candidates) == {"transformer", "convolution"}


def test_a_folder_without_sounds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("nothing")
    with pytest.raises(UserError, match="holds no sound; name a file, or a folder with one subfolder of sounds"):
        automatic_task("classification", {"source": str(tmp_path), "processor": "log_mel"})
