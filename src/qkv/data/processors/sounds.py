"""Processors of sounds: samples of waveforms, and log-mel frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.data.batching.padding import lengths_or_none
from qkv.data.features.mel import cepstrum, log_mel
from qkv.data.processors.augment import Mixed
from qkv.data.processors.processor import Processor
from qkv.data.processors.sound_changes import Clips, changed_clips
from qkv.data.records.columns.profile import profiles
from qkv.data.records.images.pictures import as_uri as image_uri
from qkv.data.records.sounds.cells import Sound, holds_sounds
from qkv.data.records.sounds.sound_files import player_uri, read_sound, sound_length, sound_name
from qkv.data.records.table import Table
from qkv.data.records.values import Unusable, readable
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.sound import LogMel, Sounds, Waveform

S = TypeVar("S", bound=Sounds)
_USUAL = 16_000
"""Highest rate that is chosen by default, in Hz, as in published speech models."""
_SHOWN = 10.0
"""Seconds from the start of a sound that reports show and play."""
_TALL, _WIDE = 64, 160
"""Height and largest width of a spectrogram in reports, in pixels."""
_COLOURS = ("#0d0887", "#cc4778", "#f0f921")
"""Colours of the quietest, the middle and the loudest place of a spectrogram."""
_SAMPLE = 500
"""Number of training sounds that determine the rate, and mean and deviation."""


@dataclass(frozen=True)
class SoundSignal(Signal):
    """Log-mel frames with the samples (B, S) of which they were made, and their lengths (B), for random changes."""

    samples: Tensor | None = None
    sizes: Tensor | None = None


class SoundProcessor(Processor, Generic[S]):
    """Base class of processors of sounds: a file, a data URI, or an array with its rate -> samples (S) in float32."""

    example = "clip.wav"
    simple = "mfcc"
    signals_only = ("changes", "mean", "deviation")
    spec: S

    def __init__(self, spec: S):
        super().__init__(spec)
        self.num_cut = 0

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        if Path(source).expanduser().is_dir():
            return holds_sounds(Path(source).expanduser())
        rows = table()
        return any(profile.fits("sound") for profile in ([] if rows is None else profiles(rows).values()))

    def fitted(self, values: Sequence[Any]) -> S:
        if self.spec.rate is not None:
            return self.spec
        sample = values[:: max(1, len(values) // _SAMPLE)]
        rates = readable(lambda value: sound_length(value)[1], sample, "sound")
        return self.spec.changed(rate=min(_USUAL, int(np.median(rates))))

    def encode(self, value: Any) -> np.ndarray:
        longest = self.spec.seconds or self.spec.longest
        sound = read_sound(value, self.spec.rate, longest)
        self.num_cut += sound.cut
        return sound.samples

    def size(self, encoded: np.ndarray) -> int:
        return 1 if self.spec.fixed else len(encoded)

    def samples(self, encoded: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return samples (B, S), padded with silence, and their lengths (B)."""
        rows = [torch.from_numpy(each) for each in encoded]
        lengths = torch.tensor([len(each) for each in rows])
        samples = pad_sequence(rows, batch_first=True)
        if self.spec.seconds:
            size = self.spec.samples(self.spec.seconds)
            samples = torch.nn.functional.pad(samples[:, :size], (0, max(0, size - samples.shape[1])))
        return samples, lengths

    def features(self, encoded: np.ndarray) -> np.ndarray:
        return sound_statistics(encoded, self.spec.rate or _USUAL)

    def picture(self, value: Any) -> str | None:
        try:
            sound = read_sound(value, longest=_SHOWN)
        except Unusable:
            return None
        return image_uri(spectrogram(sound))

    def player(self, value: Any) -> str | None:
        try:
            return player_uri(read_sound(value, self.spec.rate, _SHOWN))
        except Unusable:
            return None

    def notes(self) -> list[str]:
        if not self.num_cut:
            return []
        longest = self.spec.seconds or self.spec.longest
        return [f"{self.num_cut:,} sounds are longer than {longest:g} seconds; their end is not read"]

    def note(self, value: Any) -> str:
        seconds, longest = sound_length(value)[0], self.spec.seconds or self.spec.longest
        if seconds <= longest:
            return ""
        return f"the sound is {seconds:,.0f} seconds long; its first {longest:g} are read"

    def shown(self, value: Any) -> str:
        return sound_name(value, "sound")


@implements(Waveform)
class WaveformProcessor(SoundProcessor[Waveform]):
    """Sounds as samples (B, S), with their lengths."""

    automatic = False

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        rows = [_standardised(each) for each in encoded] if self.spec.normalise else encoded
        return self._of_samples(*self.samples(rows))

    def _of_samples(self, samples: Tensor, lengths: Tensor) -> Signal:
        return Signal(samples, None if self.spec.seconds else lengths_or_none(samples, lengths))

    def augmented(self, signal: Signal, rng: np.random.Generator) -> tuple[Signal, Mixed | None]:
        if not self.spec.changes:
            return signal, None
        rows, size = signal.values.shape[:2]
        lengths = torch.full((rows,), size) if signal.lengths is None else signal.lengths
        clips = changed_clips(self.spec.changes, Clips(signal.values, lengths, self.spec.rate or _USUAL), rng)
        changed = self._of_samples(clips.values, clips.lengths)
        return replace(signal, values=changed.values, lengths=changed.lengths), None


@implements(LogMel)
class LogMelProcessor(SoundProcessor[LogMel]):
    """Sounds as log-mel frames (B, T, bins), with their lengths in frames."""

    def fitted(self, values: Sequence[Any]) -> LogMel:
        spec = super().fitted(values)
        if spec.normalise != "data" or spec.mean is not None:
            return spec
        sample = values[:: max(1, len(values) // _SAMPLE)]
        reader = LogMelProcessor(spec)
        frames = np.concatenate(readable(lambda value: reader.frames(reader.read(value)), sample, "sound"))
        mean, deviation = frames.mean(0), frames.std(0).clip(min=1e-3)
        return spec.changed(mean=tuple(mean.round(4).tolist()), deviation=tuple(deviation.round(4).tolist()))

    def frames(self, samples: np.ndarray) -> np.ndarray:
        """Return the log-mel frames (T, bins) of one sound, before the normalisation by data."""
        return log_mel(torch.from_numpy(samples)[None], self.spec)[0].numpy()

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        samples, lengths = self.samples(encoded)
        signal = self._of_samples(samples, lengths)
        if all(change.of_frames for change in self.spec.changes):
            return signal
        return SoundSignal(signal.values, signal.lengths, samples=samples, sizes=lengths)

    def _of_samples(self, samples: Tensor, lengths: Tensor) -> Signal:
        """Return the frames of samples (B, S) with their lengths; those of a row do not depend on its padding."""
        if self.spec.length:
            return Signal(self._normalised(self._filled(log_mel(samples, self.spec, lengths)), None))
        if self.spec.seconds:
            return Signal(self._normalised(log_mel(samples, self.spec), None))
        counts = torch.tensor([self.spec.frames(length) for length in lengths.tolist()])
        frames = self._normalised(log_mel(samples, self.spec, lengths), counts)
        return Signal(frames, lengths_or_none(frames, counts))

    def augmented(self, signal: Signal, rng: np.random.Generator) -> tuple[Signal, Mixed | None]:
        changes, rate = self.spec.changes, self.spec.rate or _USUAL
        frames = signal
        if isinstance(signal, SoundSignal) and signal.samples is not None and signal.sizes is not None:
            of_samples = [change for change in changes if not change.of_frames]
            frames = self._of_samples(*changed_clips(of_samples, Clips(signal.samples, signal.sizes, rate), rng)[:2])
        rows, size = frames.values.shape[:2]
        lengths = torch.full((rows,), size) if frames.lengths is None else frames.lengths
        clips = Clips(frames.values, lengths, rate)
        values = changed_clips([change for change in changes if change.of_frames], clips, rng).values
        return replace(Signal.of(signal), values=values, lengths=frames.lengths), None

    def _filled(self, frames: Tensor) -> Tensor:
        """Cut frames (B, T, bins) to the length of the settings, or fill them with 0."""
        assert self.spec.length is not None
        short = self.spec.length - frames.shape[1]
        return torch.nn.functional.pad(frames[:, : self.spec.length], (0, 0, 0, max(0, short)))

    def _normalised(self, frames: Tensor, counts: Tensor | None) -> Tensor:
        """Normalise frames (B, T, bins), of which each row has ``counts`` (B) real ones; the others become 0."""
        spec = self.spec
        if spec.normalise == "none":
            return frames
        real = torch.ones(1, 1, 1) if counts is None else (torch.arange(frames.shape[1]) < counts[:, None])[..., None]
        if spec.normalise == "data":
            assert spec.mean is not None
            assert spec.deviation is not None
            return (frames - torch.tensor(spec.mean)) / torch.tensor(spec.deviation) * real
        number = frames.shape[1] if counts is None else counts[:, None, None]
        centred = (frames - (frames * real).sum(1, keepdim=True) / number) * real
        variance = centred.square().sum(1, keepdim=True) / torch.as_tensor(number - 1).clamp(min=1)
        return centred / (variance.sqrt() + 1e-5)


def sound_statistics(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return simple features of samples (S): mean and deviation over time of MFCC and of their changes, log seconds."""
    levels = log_mel(torch.from_numpy(samples)[None], LogMel(rate=rate, bins=40, form="log"))[0].numpy()
    coefficients = cepstrum(levels.astype(np.float64))
    changes = np.diff(coefficients, axis=0) if len(coefficients) > 1 else np.zeros_like(coefficients)
    parts = [coefficients.mean(0), coefficients.std(0), changes.mean(0), changes.std(0)]
    return np.concatenate((*parts, [np.log(len(samples) / rate)])).astype(np.float32)


def spectrogram(sound: Sound) -> Any:
    """Return the log-mel spectrogram of a sound as a Pillow image: time to the right, frequency upwards."""
    from PIL import Image, ImageOps

    levels = log_mel(torch.from_numpy(sound.samples)[None], LogMel(rate=sound.rate, bins=_TALL, form="whisper"))[0]
    low, high = float(levels.min()), float(levels.max())
    bright = ((levels - low) / (high - low or 1.0) * 255).round().to(torch.uint8).numpy()
    image = Image.fromarray(np.ascontiguousarray(bright.T[::-1]))
    image = image.resize((min(_WIDE, max(_TALL, image.width)), _TALL))
    black, middle, white = _COLOURS
    return ImageOps.colorize(image, black, white, middle)


def _standardised(samples: np.ndarray) -> np.ndarray:
    """Return samples of mean 0 and variance 1."""
    centred = samples - samples.mean(dtype=np.float64)
    return (centred / np.sqrt(np.square(centred).mean() + 1e-7)).astype(np.float32)
