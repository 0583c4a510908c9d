"""Samples of a sound, read forwards, and where there is voice activity in it."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from qkv.data.records.sounds.sound_files import sound_blocks, sound_name
from qkv.data.records.values import Unusable
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


class Samples:
    """Samples of a sound at a rate, read forwards; 0 after its end. Raises ``UserError`` for what cannot be read."""

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
            block = self._next()
            self.complete = block is None
            if block is not None:
                self._parts.append(block)
                self.end += len(block)
            self._forget(begin)
        self._forget(begin)
        joined = self._parts[0] if len(self._parts) == 1 else np.concatenate((np.zeros(0, np.float32), *self._parts))
        part = joined[begin - self._first : end - self._first]
        return np.pad(part, (0, max(0, end - begin - len(part))))

    def _next(self) -> np.ndarray | None:
        try:
            return next(self._blocks, None)
        except Unusable as error:
            raise UserError(str(error)) from None

    def _forget(self, begin: int) -> None:
        while self._parts and self._first + len(self._parts[0]) <= begin:
            self._first += len(self._parts.popleft())


class Voice:
    """Voice activity of a sound by the level of its frames.

    levels (T): level of each frame in dB, relative to full scale. per_second: number of frames in a second. There
    is voice activity where enough frames of a short time have a level within 40 dB of the loudest speech. active (T):
    True there and shortly before and after. loud (T): True for frames with voice activity that have this level too.
    """

    def __init__(self, levels: np.ndarray, per_second: float):
        self.levels, self.count = levels, len(levels)
        least = max(_QUIETEST, float(np.quantile(levels, _LOUD)) - _RANGE)
        near, around = (max(1, round(seconds * per_second)) for seconds in (_SMOOTH, _AROUND))
        share = np.convolve(levels > least, np.full(near, 1 / near), "same")[: self.count]
        spoken = share >= min(_SHARE, 3 / near)
        self.loud = spoken & (levels > least)
        self.active = np.convolve(spoken, np.ones(2 * around + 1), "same")[: self.count] > 0

    def next_active(self, begin: int) -> int:
        """Return the first active frame from ``begin`` on; ``count`` if there is none."""
        return self._next(self.active, begin)

    def next_loud(self, begin: int) -> int:
        """Return the first loud frame from ``begin`` on; ``count`` if there is none."""
        return self._next(self.loud, begin)

    def _next(self, frames: np.ndarray, begin: int) -> int:
        later = frames[begin:]
        return begin + int(later.argmax()) if later.any() else self.count

    def spans(self, size: int, guard: bool) -> list[tuple[int, int]]:
        """Return (begin, end) of parts of at most ``size`` frames, cut where the sound is quiet.

        guard: leave out the frames between parts that are not active.
        """
        parts, begin = list[tuple[int, int]](), self.next_active(0) if guard else 0
        while begin < self.count:
            end = min(begin + size, self.count)
            if end < self.count:
                middle = begin + size // 2
                smooth = np.convolve(self.levels[middle:end], np.full(9, 1 / 9), "same")
                end = middle + max(1, int(smooth.argmin()))
            live = np.flatnonzero(self.active[begin:end]) if guard else np.arange(end - begin)
            if len(live):
                parts.append((begin, begin + int(live[-1]) + 1))
            begin = self.next_active(end) if guard else end
        return parts


def levels_of(samples: np.ndarray, step: int) -> np.ndarray:
    """Return the level in dB of each ``step`` samples of a whole number of steps."""
    power = np.square(samples, dtype=np.float64).reshape(-1, step).mean(1)
    return 10 * np.log10(power + 1e-12)


def check_length(value: Any, samples: Samples) -> None:
    """Raise ``UserError`` for a sound without samples, once it has been read."""
    if not samples.end:
        raise UserError(f"{sound_name(value)} has no samples")
