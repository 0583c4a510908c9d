"""Transcription while a sound arrives: equal to the whole sound for causal models, part by part for others."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.runs import speech

import qkv
from qkv.cli.main import main
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.data.records.sounds.streams import SoundStream, microphone_sound, piped_sound
from qkv.runs.run import Run, task_of
from qkv.runs.transcription.streaming import reads_as_it_arrives, stream_transcript
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

RATE = 8000
FRONTENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "log-mel frames": (
        {"kind": "log_mel", "rate": RATE, "bins": 12, "form": "log", "floor": 1e-5},
        {"kind": "mel_convolutions", "strides": [2, 2], "positions": "sinusoidal"},
    ),
    "samples": (
        {"kind": "waveform", "rate": RATE, "normalise": False},
        {
            "kind": "wave_convolutions",
            "channels": [16] * 4,
            "kernels": [10, 8, 4, 4],
            "strides": [5, 4, 4, 2],
            "norms": "layer",
            "near": 0,
        },
    ),
}


def tone(hertz: float, seconds: float = 0.25) -> np.ndarray:
    samples = 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)
    return np.concatenate((samples, np.zeros(RATE // 10))).astype(np.float32)


def spoken(count: int, seed: int) -> tuple[np.ndarray, str]:
    """Tones and their names."""
    words = np.random.default_rng(seed).choice(["low", "high"], count)
    return np.concatenate([tone(300 if word == "low" else 2500) for word in words]), " ".join(words)


@pytest.fixture(scope="module", params=FRONTENDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A causal recogniser with random weights that are large, so that it writes many letters and spaces."""
    processor, frontend = FRONTENDS[request.param]
    folder, rows = tmp_path_factory.mktemp("heard"), ["sound,transcript"]
    for i in range(16):
        samples, text = spoken(1 + i % 3, i)
        (folder / f"{i}.wav").write_bytes(sound_bytes(Sound(samples, RATE)))
        rows.append(f"{folder / f'{i}.wav'},{text}")
    (folder / "clips.csv").write_text("\n".join(rows) + "\n")
    blocks = [{"branches": ["attention(2, mask='causal & window(20)', relative=rope)", "gru", "feed_forward"]}]
    recipe = {
        "name": "heard",
        "data": {"source": str(folder / "clips.csv"), "tokenizer": "characters", "processor": processor},
        "task": "transcription",
        "model": {
            "width": 32,
            "init_std": 0.5,
            "frontend": frontend,
            "blocks": blocks,
            "head": "ctc",
            "segmentation": "scales([1, 4])",
        },
        "training": {
            "steps": 1,
            "batch_size": 8,
            "optimizer": {"kind": "adamw", "lr": 1e-6},
            "schedule": "constant",
            "validation": {"every": 1},
        },
    }
    return qkv.train(Recipe.parse(recipe), folder / "run")


def blocks(samples: np.ndarray, *sizes: int) -> Iterator[np.ndarray]:
    begin = 0
    while begin < len(samples):
        size = sizes[begin % len(sizes)]
        yield samples[begin : begin + size]
        begin += size


def test_a_causal_model_writes_the_text_of_the_whole_sound(run: Run) -> None:
    assert reads_as_it_arrives(run)
    samples = speech.sound(4.0, seed=5)
    whole = task_of(run).predict(run.model, run.vocabulary, run.recipe, [{"sound": (samples, RATE)}])[0]["answer"]
    assert whole.count(" ") > 1
    for sizes in ((100,), (801, 2000, 37), (len(samples),)):
        pieces = list(stream_transcript(run, SoundStream(RATE, blocks(samples, *sizes))))
        assert "".join(pieces) == whole, sizes
        assert len(pieces) > 2 or len(sizes) == 1


def test_words_are_written_before_the_sound_ends(run: Run) -> None:
    samples = speech.sound(4.0, seed=5)
    arrived = []

    def arriving() -> Iterator[np.ndarray]:
        for block in blocks(samples, 1000):
            arrived.append(len(block))
            yield block

    first = next(iter(stream_transcript(run, SoundStream(RATE, arriving()))))
    assert first.strip()
    assert sum(arrived) < len(samples) // 2


def test_a_short_and_an_empty_sound(run: Run) -> None:
    for samples in (np.zeros(1, np.float32), tone(300)[:500]):
        whole = task_of(run).predict(run.model, run.vocabulary, run.recipe, [{"sound": (samples, RATE)}])[0]["answer"]
        assert "".join(stream_transcript(run, SoundStream(RATE, iter([samples])))) == whole
    assert list(stream_transcript(run, SoundStream(RATE, iter(())))) == []


def test_other_models_read_the_parts_between_pauses(tmp_path: Path) -> None:
    """A published model of Whisper's form: each part is transcribed like a sound of its own."""
    whisper = qkv.load(speech.write(tmp_path))
    assert not reads_as_it_arrives(whisper)
    parts, silence = [speech.sound(1.5, seed=seed) for seed in (1, 2)], np.zeros(speech.RATE, np.float32)
    samples = np.concatenate((parts[0], silence, parts[1]))
    texts = list(stream_transcript(whisper, SoundStream(speech.RATE, blocks(samples, 1600)), language="en"))
    assert len(texts) == 2
    long = list(stream_transcript(whisper, SoundStream(speech.RATE, iter([speech.sound(7.0)])), language="en"))
    assert len(long) >= 3  # windows of two seconds


def test_pipes_hold_wav_or_raw_samples() -> None:
    samples = np.arange(-500, 500, dtype=np.int16) * 60
    wav = sound_bytes(Sound((samples / 32768).astype(np.float32), RATE))
    for content, rate in ((samples.astype("<i2").tobytes(), 16_000), (wav, None)):
        found = piped_sound(io.BytesIO(content), rate)
        assert isinstance(found, SoundStream)
        assert found.rate == (rate or RATE)
        np.testing.assert_allclose(np.concatenate(list(found.blocks)) * 32768, samples, atol=1)
    unknown = wav[:40] + b"\xff\xff\xff\xff" + wav[44:]  # what records does not know the length yet
    found = piped_sound(io.BytesIO(unknown))
    assert isinstance(found, SoundStream)
    assert sum(map(len, found.blocks)) == len(samples)
    other = sound_bytes(Sound((samples / 32768).astype(np.float32), RATE), "PCM_24")
    assert piped_sound(io.BytesIO(other)) == other
    assert piped_sound(io.BytesIO(b"ID3rest")) == b"ID3rest"
    with pytest.raises(UserError, match="rates from"):
        piped_sound(io.BytesIO(b""), 3)


class Microphone:
    """A module that records one sound, and is then stopped."""

    PortAudioError = OSError

    def __init__(self, samples: np.ndarray):
        self.content = (samples * 32767).astype("<i2").tobytes()

    def RawInputStream(self, **settings: Any) -> Any:
        assert settings == {"samplerate": RATE, "channels": 1, "dtype": "int16"}
        return self

    def __enter__(self) -> Microphone:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def read(self, count: int) -> tuple[bytes, bool]:
        if not self.content:
            raise KeyboardInterrupt
        block, self.content = self.content[: 2 * count], self.content[2 * count :]
        return block, False


def test_the_command_listens_to_a_pipe_and_a_microphone(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = speech.sound(2.0, seed=3)
    raw = (samples * 32767).astype("<i2").tobytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
    assert main(["transcribe", str(run.folder), "-", "--pcm", str(RATE)]) == 0
    said = capsys.readouterr().out
    whole = task_of(run).predict(run.model, run.vocabulary, run.recipe, [{"sound": (samples, RATE)}])[0]["answer"]
    assert said == f"{whole}\n"
    monkeypatch.setitem(sys.modules, "sounddevice", Microphone(samples))
    assert main(["transcribe", str(run.folder), "--microphone"]) == 0
    heard = capsys.readouterr().out.strip()
    assert heard
    assert whole.startswith(heard)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(UserError, match="pip install sounddevice"):
        microphone_sound(RATE)
    for words, sentence in (
        (("--microphone", "--format", "srt"), "leave --format"),
        (("-", "--microphone"), "give one of them"),
        ((), "no sound given"),
        (("0.wav", "--pcm", "8000"), "--pcm"),
    ):
        assert main(["transcribe", str(run.folder), *words]) == 2
        assert sentence in capsys.readouterr().err
