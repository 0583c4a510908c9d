"""Windows of a sound as log-mel frames, read from its file as they are needed, so that a long one takes little memory.

The sound is read twice. The first pass finds the highest level of the whole sound, on which the frames of all windows
depend, and the voice activity; the second pass reads the windows in order. Beyond the end of the sound, samples are 0:
the sound is padded, not the frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.features.mel import band_levels, raised_levels
from qkv.runs.transcription.voice import Samples, Voice, check_length, levels_of
from qkv.spec.signals.sound import LogMel
from qkv.system.errors import UserError


class SoundWindows:
    """Windows of ``size`` log-mel frames of a sound.

    count: number of frames of the sound. seconds: its length. voice: its voice activity, by frame. Raises
    ``UserError`` for a sound that cannot be read.
    """

    def __init__(self, value: Any, spec: LogMel, size: int):
        assert spec.rate is not None
        if spec.form != "whisper" or spec.normalise != "none" or not spec.centre:
            raise UserError(
                "sounds are transcribed in windows only from Whisper's log-mel frames; use a model that reads these"
            )
        self.spec, self.size, self.step, self.rate = spec, size, spec.step, spec.rate
        self._value, self._frames = value, spec.changed(centre=False, changes=())
        self.voice = self._measure()
        self.count = self.voice.count
        self._samples = Samples(value, spec.rate)

    def _measure(self) -> Voice:
        """Read the sound; set its length and its highest band level, and return its voice activity."""
        samples, levels, highest, begin = Samples(self._value, self.rate), list[np.ndarray](), -10.0, 0
        while not samples.complete:
            bands = self._bands(samples, begin)
            levels.append(levels_of(samples.take(begin * self.step, (begin + self.size) * self.step), self.step))
            highest, begin = max(highest, float(bands.max())), begin + self.size
        check_length(self._value, samples)
        self.seconds, self.highest = samples.end / self.rate, highest
        return Voice(np.concatenate(levels)[: max(1, samples.end // self.step)], self.rate / self.step)

    def _bands(self, samples: Samples, begin: int) -> Tensor:
        """Return the levels (size, bins) of the bands of the frames from ``begin`` on."""
        margin = self.spec.frame // 2
        first, last = begin * self.step - margin, (begin + self.size - 1) * self.step + self.spec.frame - margin
        part = samples.take(max(0, first), last)
        if first < 0:
            mirrored = part[margin:0:-1] if self.spec.ends == "reflect" else np.zeros(margin, np.float32)
            part = np.concatenate((mirrored[first:], part))
        return band_levels(torch.from_numpy(part)[None], self._frames)[0]

    def at(self, begin: int) -> Tensor:
        """Return the frames (size, bins) of the window from frame ``begin`` on, which must not decrease."""
        return raised_levels(self._bands(self._samples, begin), self.highest)

    @property
    def silent(self) -> float:
        """Value of the frames of samples that are 0."""
        return (max(-10.0, self.highest - 8.0) + 4.0) / 4.0
