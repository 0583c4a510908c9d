"""Windows of a sound as log-mel frames, read from its file as they are needed, so that a long one takes little memory.

The sound is read twice. The first pass finds what a window's frames depend on beside its own samples, the highest level
of the whole sound, and where there is voice activity; the second pass reads windows in their order. Beyond the end of
the sound, samples are 0: padding is in the sound, not in the frames.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.features.mel import band_levels, raised_levels
from qkv.data.records.sounds.sound_files import sound_blocks, sound_name
from qkv.data.records.values import Unusable
from qkv.spec.signals.sound import LogMel
from qkv.system.errors import UserError

_QUIETEST = -65.0
"""Level in dB, relative to full scale, below which no frame is active."""
_RANGE = 40.0
"""Frames within so many dB below the loudest speech are active."""
_LOUD = 0.99
"""Quantile of the levels of frames that stands for the loudest speech, so that a click does not."""
_SMOOTH = 0.1
"""Seconds over which the share of active frames is taken."""
_SHARE = 0.3
"""Share of active frames from which a place is active."""
_AROUND = 0.2
"""Seconds before and after voice activity that belong to it."""


class _Samples:
    """Samples of a sound, read forwards; 0 after its end."""

    def __init__(self, value: Any, rate: int):
        self._blocks, self._parts, self._first, self.end = sound_blocks(value, rate), deque[np.ndarray](), 0, 0
        self._least = 0
        """First sample that has not been forgotten."""
        self.complete = False
        """True once the last sample has been read, of which there are ``end``."""

    def take(self, begin: int, end: int) -> np.ndarray:
        """Return the samples from ``begin`` to ``end``. Those before ``begin`` are forgotten."""
        assert begin >= self._least, "samples are read forwards"
        self._least = begin
        while not self.complete and self.end < end:
            block = next(self._blocks, None)
            self.complete = block is None
            if block is not None:
                self._parts.append(block)
                self.end += len(block)
            self._forget(begin)
        self._forget(begin)
        joined = self._parts[0] if len(self._parts) == 1 else np.concatenate((np.zeros(0, np.float32), *self._parts))
        part = joined[begin - self._first : end - self._first]
        return np.pad(part, (0, max(0, end - begin - len(part))))

    def _forget(self, begin: int) -> None:
        while self._parts and self._first + len(self._parts[0]) <= begin:
            self._first += len(self._parts.popleft())


class SoundWindows:
    """Windows of ``size`` log-mel frames of a sound.

    count: number of frames of the sound. seconds: its length. active (count): True where there is voice activity.
    Raises ``UserError`` for a sound that cannot be read.
    """

    def __init__(self, value: Any, spec: LogMel, size: int):
        assert spec.rate is not None
        if spec.form != "whisper" or spec.normalise != "none" or not spec.centre:
            raise UserError("windows of a long sound are read in the form of Whisper's log-mel frames only")
        self.spec, self.size, self.step, self.rate = spec, size, spec.step, spec.rate
        self._value, self._frames = value, spec.changed(centre=False, changes=())
        try:
            self.levels = self._measure()
        except Unusable as error:
            raise UserError(str(error)) from None
        if not self.seconds:
            raise UserError(f"{sound_name(value)} has no samples")
        self.count = len(self.levels)
        self.active = self._activity()
        self._samples = _Samples(value, spec.rate)

    def _measure(self) -> np.ndarray:
        """Read the sound; set its length and its highest band level, and return the level of each frame in dB."""
        samples, levels, highest, begin = _Samples(self._value, self.rate), list[np.ndarray](), -10.0, 0
        while not samples.complete:
            bands = self._bands(samples, begin)
            power = np.square(samples.take(begin * self.step, (begin + self.size) * self.step), dtype=np.float64)
            levels.append(10 * np.log10(power.reshape(self.size, self.step).mean(1) + 1e-12))
            highest, begin = max(highest, float(bands.max())), begin + self.size
        self.seconds, self.highest = samples.end / self.rate, highest
        return np.concatenate(levels)[: max(1, samples.end // self.step)]

    def _bands(self, samples: _Samples, begin: int) -> Tensor:
        """Return the levels (size, bins) of the bands of the frames from ``begin`` on."""
        margin = self.spec.frame // 2
        first, last = begin * self.step - margin, (begin + self.size - 1) * self.step + self.spec.frame - margin
        part = samples.take(max(0, first), last)
        if first < 0:
            mirrored = part[margin:0:-1] if self.spec.ends == "reflect" else np.zeros(margin, np.float32)
            part = np.concatenate((mirrored[first:], part))
        return band_levels(torch.from_numpy(part)[None], self._frames)[0]

    def at(self, begin: int) -> Tensor:
        """Return the frames (size, bins) of the window from frame ``begin`` on, which must not go back by much."""
        try:
            return raised_levels(self._bands(self._samples, begin), self.highest)
        except Unusable as error:
            raise UserError(str(error)) from None

    @property
    def silent(self) -> float:
        """Value of the frames of samples that are 0."""
        return (max(-10.0, self.highest - 8.0) + 4.0) / 4.0

    def _activity(self) -> np.ndarray:
        """Return where the level is within ``_RANGE`` of the loudest speech, smoothed over time."""
        least = max(_QUIETEST, float(np.quantile(self.levels, _LOUD)) - _RANGE)
        near = max(1, round(_SMOOTH * self.rate / self.step))
        share = np.convolve(self.levels > least, np.full(near, 1 / near), "same")[: self.count]
        around = max(1, round(_AROUND * self.rate / self.step))
        return np.convolve(share >= min(_SHARE, 1 / near * 3), np.ones(2 * around + 1), "same")[: self.count] > 0

    def next_active(self, begin: int) -> int:
        """Return the first active frame from ``begin`` on; ``count`` if there is none."""
        later = self.active[begin:]
        return begin + int(later.argmax()) if later.any() else self.count

    def spans(self, guard: bool) -> list[tuple[int, int]]:
        """Return (begin, end) of parts of at most ``size`` frames, cut where the sound is quiet.

        guard: leave out the frames between parts that are not active.
        """
        parts, begin = list[tuple[int, int]](), self.next_active(0) if guard else 0
        while begin < self.count:
            end = min(begin + self.size, self.count)
            if end < self.count:
                middle = begin + self.size // 2
                smooth = np.convolve(self.levels[middle:end], np.full(9, 1 / 9), "same")
                end = middle + int(smooth.argmin())
            live = np.flatnonzero(self.active[begin:end]) if guard else np.arange(end - begin)
            if len(live):
                parts.append((begin, begin + int(live[-1]) + 1))
            begin = self.next_active(end) if guard else end
        return parts
