"""Tests of processors of sounds: files of all kinds, files that are wrong, lengths, and random changes."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.processors.processor import build_processor
from qkv.data.processors.sound_changes import Clips, changed_clips
from qkv.data.processors.sounds import LogMelProcessor, WaveformProcessor
from qkv.data.records.sounds.cells import Sound, is_sound
from qkv.data.records.sounds.sound_files import as_uri, read_sound, sound_blocks, sound_length
from qkv.data.records.values import Unusable
from qkv.spec.signals.sound import FrameMasks, LogMel, Loudness, Room, Shift, SoundChange, Speed, Waveform, WhiteNoise

RATE = 8000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
"""A second of 440 Hz."""


def written(path: Path, samples: np.ndarray = TONE, rate: int = RATE, **settings: Any) -> str:
    soundfile.write(path, samples, rate, **settings)
    return str(path)


@pytest.mark.parametrize(
    ("suffix", "subtype", "tolerance"),
    [
        ("wav", "PCM_U8", 1e-2),
        ("wav", "PCM_24", 1e-6),
        ("wav", "FLOAT", 0.0),
        ("flac", "PCM_16", 4e-5),
        ("ogg", "VORBIS", 0.05),
        ("aiff", "PCM_16", 4e-5),
    ],
)
def test_files_of_all_kinds_are_read(tmp_path: Path, suffix: str, subtype: str, tolerance: float) -> None:
    file = written(tmp_path / f"tone.{suffix}", subtype=subtype)
    assert is_sound(file)
    assert sound_length(file) == (1.0, RATE)
    sound = read_sound(file)
    assert sound.rate == RATE
    np.testing.assert_allclose(sound.samples, TONE, atol=tolerance)


def test_channels_are_averaged_and_rates_converted(tmp_path: Path) -> None:
    gains = np.arange(7, dtype=np.float32)
    file = written(tmp_path / "seven.wav", TONE[:, None] * gains / 6, subtype="FLOAT")
    np.testing.assert_allclose(read_sound(file).samples, TONE / 2, atol=1e-6)
    twice = read_sound((TONE, RATE), rate=2 * RATE).samples
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / (2 * RATE))
    assert len(twice) == 2 * RATE
    np.testing.assert_allclose(twice[500:-500], expected[500:-500], atol=2e-3)
    np.testing.assert_allclose(np.concatenate(list(sound_blocks((TONE, RATE), 2 * RATE))), twice, atol=1e-6)


def test_sounds_in_memory(tmp_path: Path) -> None:
    whole = (TONE * 32767).astype(np.int16)
    several = [
        (TONE, RATE),
        {"array": TONE, "sampling_rate": RATE},
        Sound(TONE, RATE),
        Path(written(tmp_path / "tone.wav")),
        (tmp_path / "tone.wav").read_bytes(),
        as_uri(Sound(TONE, RATE)),
        (np.stack((TONE, TONE)), RATE),
        (whole, RATE),
    ]
    for value in several:
        np.testing.assert_allclose(read_sound(value).samples, TONE, atol=1e-4)


def lying(path: Path) -> str:
    """A WAV file whose header promises more samples than there are."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(b"\0\0" * 100)
    content = bytearray(buffer.getvalue())
    content[40:44] = (2**31 - 4).to_bytes(4, "little")
    path.write_bytes(bytes(content))
    return str(path)


def test_wrong_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    text, empty = tmp_path / "text.wav", tmp_path / "empty.wav"
    text.write_text("this is not sound")
    empty.write_bytes(b"")
    nan = TONE.copy()
    nan[7] = np.nan
    wrong = {
        str(text): "is no sound file",
        str(empty): "it is empty",
        str(tmp_path): "it is a directory",
        str(tmp_path / "absent.wav"): "there is no file",
        written(tmp_path / "none.wav", TONE[:0]): "has no samples",
        written(tmp_path / "nan.wav", nan, subtype="FLOAT"): "no finite numbers",
        written(tmp_path / "slow.wav", TONE, rate=1): "a rate of 1 Hz",
    }
    for file, reason in wrong.items():
        with pytest.raises(Unusable, match=reason) as refusal:
            read_sound(file)
        assert "\n" not in str(refusal.value)
    for value in ((TONE.reshape(2, 2, -1), RATE), ({"a": 1}), 7):
        with pytest.raises(Unusable):
            read_sound(value)


def test_lengths_that_lie_and_files_that_are_cut(tmp_path: Path) -> None:
    assert len(read_sound(lying(tmp_path / "lie.wav")).samples) == 100
    file = Path(written(tmp_path / "tone.flac", np.tile(TONE, 5)))
    content = file.read_bytes()
    (tmp_path / "cut.flac").write_bytes(content[: len(content) // 2])
    with pytest.raises(Unusable, match="damaged"):
        read_sound(str(tmp_path / "cut.flac"))


def test_an_hour_of_silence_takes_the_memory_of_what_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "hour.flac", np.zeros(3600 * RATE, np.int16))
    processor = LogMelProcessor(LogMel(rate=RATE, longest=2.0, form="log", normalise="clip"))
    encoded = processor.encode(file)
    assert len(encoded) == 2 * RATE
    assert processor.notes() == ["1 sounds are longer than 2 seconds; their end is not read"]
    assert torch.isfinite(processor.signal([encoded]).values).all()


@pytest.mark.parametrize("normalise", ["none", "clip", "data"])
def test_rows_of_a_batch_equal_rows_alone(normalise: str) -> None:
    spec = LogMel(bins=20, normalise=normalise)
    values = [(TONE, RATE), (TONE[:900], RATE), (TONE[:1], RATE)]
    processor = build_processor(LogMelProcessor(spec).fitted(values))
    assert isinstance(processor, LogMelProcessor)
    assert processor.spec.rate == RATE
    encoded = [processor.encode(value) for value in values]
    together = processor.signal(encoded)
    assert together.lengths is not None
    for row, each in enumerate(encoded):
        alone = processor.signal([each]).values[0]
        assert len(alone) == together.lengths[row]
        torch.testing.assert_close(together.values[row, : len(alone)], alone, atol=1e-5, rtol=1e-5)
        assert processor.features(each).shape == (processor.spec.num_simple,)


def test_samples_are_standardised_without_their_padding() -> None:
    processor = WaveformProcessor(Waveform(rate=RATE))
    signal = processor.signal([processor.encode((TONE + 0.2, RATE)), processor.encode((TONE[:100], RATE))])
    assert signal.lengths is not None
    for row, length in zip(signal.values, signal.lengths.tolist(), strict=True):
        assert abs(float(row[:length].mean())) < 1e-5
        assert float(row[:length].var(correction=0)) == pytest.approx(1, abs=1e-4)
        assert not row[length:].any()


CHANGES = [Shift(seconds=0.1), Speed(rate=1.0), Loudness(rate=1.0), WhiteNoise(rate=1.0), Room(rate=1.0)]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.kind)
def test_changes_of_samples(change: SoundChange) -> None:
    samples = torch.from_numpy(np.stack((TONE, np.pad(TONE[:2000], (0, 6000)))))
    clips = Clips(samples, torch.tensor([RATE, 2000]), RATE)
    changed, again = (changed_clips([change], clips, np.random.default_rng(3)) for _ in range(2))
    torch.testing.assert_close(changed.values, again.values)
    assert not torch.equal(changed.values[:, :100], clips.values[:, :100])
    assert not changed.values[1, int(changed.lengths[1]) :].any()
    still = changed_clips([change.changed(rate=0.0)], clips, np.random.default_rng(3))
    torch.testing.assert_close(still.values, clips.values, atol=1e-6, rtol=0)


def test_noise_has_its_ratio() -> None:
    clips = Clips(torch.from_numpy(TONE)[None], torch.tensor([RATE]), RATE)
    noisy = changed_clips([WhiteNoise(rate=1.0, least=20, most=20)], clips, np.random.default_rng(0))
    noise = (noisy.values - clips.values).square().mean()
    assert 10 * float((clips.values.square().mean() / noise).log10()) == pytest.approx(20, abs=0.3)


def test_masks_of_frames_have_the_mean() -> None:
    frames = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(0))
    clips = Clips(frames, torch.tensor([40, 40, 20]), RATE)
    masked = changed_clips([FrameMasks(bins=4)], clips, np.random.default_rng(1)).values
    differing = masked != frames
    assert 0.02 < float(differing[0].double().mean()) < 0.8
    mean = (frames[0].sum(0) / 40).expand_as(frames[0])
    torch.testing.assert_close(masked[0][differing[0]], mean[differing[0]])


def test_training_sounds_change_and_held_out_ones_do_not() -> None:
    processor = LogMelProcessor(LogMel(rate=RATE, bins=20, changes=(Speed(rate=1.0), FrameMasks())))
    signal = processor.signal([processor.encode((TONE, RATE)), processor.encode((TONE[:3000], RATE))])
    plain = LogMelProcessor(LogMel(rate=RATE, bins=20)).signal([TONE, TONE[:3000]])
    torch.testing.assert_close(signal.values, plain.values)
    changed, mixed = processor.augmented(signal, np.random.default_rng(0))
    assert mixed is None
    assert changed.values.shape != signal.values.shape or not torch.equal(changed.values, signal.values)
