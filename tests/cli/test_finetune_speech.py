"""``qkv train finetune --from FOLDER --data clips.csv``: published models of speech go on with a table of clips."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Call
from tests.runs import speech
from tests.runs.recognisers import wav2vec2

from qkv.choosing.guessed import guess_task
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.runs.start import find_start
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.processor import processor_name

RATE = 8000
SHORT = ("training.steps=2", "training.validation.every=2", "training.batch_size=2")
PROMPT = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    """Clips with their texts and speakers, and small published models."""
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    folder, rows = tmp_path_factory.mktemp("clips"), ["file,said,transcript"]
    for i in range(12):
        word, hertz = (("low", 300), ("high", 2500))[i % 2]
        samples = 0.5 * np.sin(2 * np.pi * (hertz + i) * np.arange(RATE // 2) / RATE)
        (folder / f"{i}.wav").write_bytes(sound_bytes(Sound(samples.astype(np.float32), RATE)))
        rows.append(f"{i}.wav,{word.upper()},{word.upper()}")
    (folder / "clips.csv").write_text("\n".join(rows) + "\n")
    speech.write(folder / "whisper")
    wav2vec2(folder / "wav2vec2")
    return folder


@pytest.mark.parametrize(("start", "kind"), [("whisper", "speech_to_text"), ("wav2vec2", "transcription")])
def test_a_published_model_of_speech_goes_on(
    qkv: Call, clips: Path, monkeypatch: pytest.MonkeyPatch, start: str, kind: str
) -> None:
    monkeypatch.chdir(clips)
    said = qkv("train", "finetune", "--from", start, "--data", "clips.csv", *SHORT, "--out", f"of_{start}")
    assert said.code == 0, said.err
    recipe = read_recipe(clips / f"of_{start}")
    assert (recipe.task.kind, recipe.start.checkpoint) == (kind, start)
    assert f"is initialised with the weights of '{start}'" in said.err
    assert ("its head is initialised at random" in said.err) == (start == "wav2vec2")  # other tokens
    figures = json.loads((clips / f"of_{start}" / "evaluation.json").read_text())["splits"]["validation"]["figures"]
    assert figures["wer"] >= 0
    heard = qkv("transcribe", f"of_{start}", "0.wav", "--no-guard", "--format", "json")
    assert heard.code == 0, heard.err
    if start == "whisper":
        assert recipe.task.begin == PROMPT  # type: ignore[attr-defined]
        assert "".join(PROMPT) in said.err


def test_a_column_of_texts_may_be_named(qkv: Call, clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clips)
    typed = ("train", "transcribe", "--from", "whisper", "--data", "clips.csv", "--transcript", "said")
    said = qkv(*typed, *SHORT, "--out", "named")
    assert said.code == 0, said.err
    assert dict(read_recipe(clips / "named").data.columns)["target"] == "said"


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        ({"language": "<|de|>"}, ("<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>")),
        ({"is_multilingual": False}, ("<|startoftranscript|>", "<|notimestamps|>")),
        (
            {"forced_decoder_ids": [[2, speech.token("translate")], [1, speech.token("de")]]},
            ("<|startoftranscript|>", "<|de|>", "<|translate|>", "<|notimestamps|>"),
        ),
        ({"forced_decoder_ids": [[1, None], [2, speech.token("transcribe")]]}, None),
    ],
)
def test_transcripts_begin_as_the_folder_says(
    clips: Path, settings: dict[str, object], prompt: tuple[str, ...] | None
) -> None:
    file = clips / "whisper" / "generation_config.json"
    before = file.read_text()
    try:
        file.write_text(json.dumps({**json.loads(before), **settings}))
        task = find_start(str(clips / "whisper")).task
        expected = prompt or ("<|startoftranscript|>", "<|transcribe|>", "<|notimestamps|>")
        assert task.begin == expected  # type: ignore[union-attr]
    finally:
        file.write_text(before)


def test_clips_with_texts_are_transcribed_and_those_with_labels_classified(clips: Path, tmp_path: Path) -> None:
    assert guess_task({"source": str(clips / "clips.csv")}) == "transcription"
    rows = [f"{clips / f'{i}.wav'},{i % 2}" for i in range(12)]
    (tmp_path / "labels.csv").write_text("file,label\n" + "\n".join(rows) + "\n")
    assert guess_task({"source": str(tmp_path / "labels.csv")}) == "classification"
