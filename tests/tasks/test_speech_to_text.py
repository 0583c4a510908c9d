"""Transcription by an encoder–decoder that is trained here: two tones and their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.runs import speech

import qkv
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.runs.run import Run
from qkv.runs.transcription.speech_tokens import speech_tokens
from qkv.spec.recipe import Recipe

RATE = 8000
WORDS = {"low": 300.0, "high": 2500.0}


def tone(word: str, seconds: float = 0.4) -> np.ndarray:
    times = np.arange(int(seconds * RATE)) / RATE
    return (0.5 * np.sin(2 * np.pi * WORDS[word] * times)).astype(np.float32)


def recipe(table: Path) -> Recipe:
    encoder = {"context_length": 50, "num_layers": 1, "frontend": "mel_convolutions(positions=sinusoidal)"}
    model = {
        "width": 32,
        "num_layers": 1,
        "context_length": 8,
        "blocks": [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward"]}],
        "encoder": encoder,
    }
    data = {
        "source": str(table),
        "tokenizer": "characters",
        "processor": {"kind": "log_mel", "rate": RATE, "seconds": 0.5, "bins": 20},
    }
    optimizer, validation = {"kind": "adamw", "lr": 3e-3}, {"every": 60}
    training = {
        "steps": 60,
        "batch_size": 8,
        "optimizer": optimizer,
        "schedule": "constant",
        "validation": validation,
    }
    return Recipe.parse({"name": "tones", "data": data, "task": "speech_to_text", "model": model, "training": training})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, rows = tmp_path_factory.mktemp("tones"), ["sound,transcript"]
    for i in range(24):
        word, rng = list(WORDS)[i % 2], np.random.default_rng(i)
        samples = (0.5 + rng.random()) * tone(word) + 0.01 * rng.standard_normal(int(0.4 * RATE))
        (folder / f"{i}.wav").write_bytes(sound_bytes(Sound(samples.astype(np.float32), RATE)))
        rows.append(f"{folder / f'{i}.wav'},{word}")
    (folder / "clips.csv").write_text("\n".join(rows) + "\n")
    return qkv.train(recipe(folder / "clips.csv"), folder / "run")


def test_it_learns_the_names_of_tones(run: Run) -> None:
    figures = qkv.evaluate(run)
    assert figures["wer"] == figures["cer"] == 0.0
    assert figures["loss"] < 1.0
    answers = qkv.predict(run, [{"sound": (tone(word), RATE)} for word in WORDS])
    assert [answer["answer"] for answer in answers] == list(WORDS)


def test_a_long_sound_is_transcribed_window_by_window(run: Run) -> None:
    """Its tokens have no timestamps, so each window is a segment; silence between is passed over."""
    pause = np.zeros(RATE // 10, np.float32)
    spoken = ["low", "high", "high", "low"]
    samples = np.concatenate([part for word in spoken for part in (tone(word), pause)])
    silence = np.zeros(RATE, np.float32)
    transcript = qkv.transcribe(run, (np.concatenate((samples, silence, samples[: RATE // 2])), RATE))
    assert [segment.text for segment in transcript.segments] == [*spoken, "low"]
    assert [segment.start for segment in transcript.segments] == [0.0, 0.5, 1.0, 1.5, 3.0]
    assert (transcript.language, transcript.seconds) == (None, 3.5)


def test_a_run_opens_again(run: Run) -> None:
    again = qkv.load(run.folder)
    assert qkv.transcribe(again, (tone("high"), RATE)).text == "high"


def test_a_fine_tuned_run_begins_as_its_texts_did(run: Run, tmp_path: Path) -> None:
    begin = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    source = Recipe.parse(
        {
            "name": "tuned",
            "data": run.recipe.data.source,
            "start": str(speech.write(tmp_path / "whisper")),
            "task": {"kind": "speech_to_text", "begin": begin},
            "training": {"steps": 1, "batch_size": 2},
        }
    )
    tuned = qkv.train(source, tmp_path / "run")
    tokens = speech_tokens(tuned)
    assert [tokens.start, *tokens.forced(None, "transcribe", True)] == [
        speech.token(text.strip("<|>")) for text in begin
    ]
    assert len(qkv.transcribe(tuned, (tone("high", 3.0), RATE), guard=False, silence=None).segments) == 2
