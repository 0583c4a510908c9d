"""Inspection of models of sound: positions have times, and the decoder's attention is over the sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.runs import speech
from tests.runs.recognisers import wav2vec2

import qkv
from qkv.cli.main import main
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.lens.inspection.inspection import Inspection
from qkv.lens.inspection.views import VIEWS

RATE = 16_000


def refusals(inspection: Inspection) -> dict[str, str]:
    return {name: inspection.view(name)["refused"] for name in VIEWS if "refused" in inspection.view(name)}


def test_the_decoder_s_attention_is_over_the_seconds_of_the_sound(tmp_path: Path) -> None:
    """A window of two seconds holds a sound of one: the silence after it is left out."""
    whisper = qkv.load(speech.write(tmp_path))
    inspection = qkv.inspect(whisper, (speech.sound(1.0), RATE), answer="ab")
    encoder, model = inspection.sides["encoder"], inspection.sides["model"]
    assert encoder["labels"][:3] == ("0.00 s", "0.02 s", "0.04 s")
    assert len(encoder["labels"]) == len(encoder["spans"]) == 50
    assert encoder["unit"] == "s"
    assert encoder["spans"][0][0] == 0
    assert encoder["spans"][-1][1] == len(encoder["series"][0]) - 1
    prompt = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
    assert model["labels"][: len(prompt)] == prompt
    maps = inspection.view("attention")["data"]["maps"]
    cross = [each["weights"]["shape"] for each in maps if each["kind"] == "cross"]
    assert cross == [[4, len(model["labels"]), 50]] * 2
    assert {each["weights"]["shape"][-1] for each in maps if each["stack"] == "encoder"} == {50}
    assert set(refusals(inspection)) <= {"neurons", "checkpoints"}


def test_a_recogniser_is_explained_at_its_first_token(tmp_path: Path) -> None:
    wav2vec2(tmp_path / "wav2vec2")
    inspection = qkv.inspect(str(tmp_path / "wav2vec2"), (speech.sound(0.5), RATE))
    side = inspection.sides["model"]
    assert side["labels"][1] == "0.02 s"
    assert len(side["series"][0]) > 100
    answers = inspection.view("answers")["data"]
    assert 0 <= answers["position"] < len(side["labels"])
    assert set(refusals(inspection)) <= {"lens", "attribution", "neurons", "checkpoints"}


def test_a_classifier_of_sounds_shows_the_time_of_its_positions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for word, hertz in (("low", 300), ("high", 2500)):
        (tmp_path / "sounds" / word).mkdir(parents=True)
        for i in range(4):
            samples = 0.5 * np.sin(2 * np.pi * (hertz + i) * np.arange(4000) / 8000)
            (tmp_path / "sounds" / word / f"{i}.wav").write_bytes(sound_bytes(Sound(samples.astype(np.float32), 8000)))
    recipe = {
        "name": "classes",
        "data": {"source": str(tmp_path / "sounds"), "processor": "log_mel(bins=12)"},
        "task": "classification",
        "model": {
            "width": 16,
            "frontend": "mel_convolutions",
            "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
            "head": "classification",
        },
        "training": {"steps": 2, "batch_size": 4, "validation": {"every": 2}},
    }
    run = qkv.train(qkv.Recipe.parse(recipe), tmp_path / "run")
    clip = tmp_path / "sounds" / "low" / "0.wav"
    side = qkv.inspect(run, str(clip)).sides["model"]
    assert side["labels"][:2] == ("0.00 s", "0.02 s")
    assert len(side["labels"]) == 25
    page = tmp_path / "page.html"
    assert main(["inspect", str(run.folder), str(clip), "--views", "answers,attention", "--out", str(page)]) == 0
    assert "0.02 s" in page.read_text()
    capsys.readouterr()
    assert main(["inspect", str(run.folder), str(tmp_path / "nowhere.wav"), "--out", str(page)]) == 2
    assert "there is no file" in capsys.readouterr().err
