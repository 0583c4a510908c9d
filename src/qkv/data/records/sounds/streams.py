"""Sounds that arrive in blocks: from a pipe, as 16-bit WAV or raw samples, or from a microphone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from qkv.data.records.sounds.sound_files import resampled
from qkv.spec.signals.sound import HIGHEST_RATE, LOWEST_RATE
from qkv.system.errors import UserError

_BYTES, _RIFF, _CHUNK = 2, 12, 8
_MOST = 1 << 20
"""Largest number of bytes of a chunk of a WAV header that is no sound."""
_PCM, _EXTENSIBLE = 1, 0xFFFE
_BLOCK = 0.1
"""Seconds of a block."""
_INSTALL = "a microphone is read by sounddevice, which is not installed: pip install sounddevice"


class SoundStream(NamedTuple):
    """Mono samples (S) in float32 that arrive in ``blocks``, and their ``rate``."""

    rate: int
    blocks: Iterator[np.ndarray]

    def at(self, rate: int) -> Iterator[np.ndarray]:
        """Yield the blocks at another rate."""
        return resampled(self.blocks, self.rate, rate)


def piped_sound(pipe: BinaryIO, rate: int | None = None) -> SoundStream | bytes:
    """Read a pipe in blocks: raw 16-bit little-endian mono samples at ``rate`` Hz, or without it a WAV of 16 bits.

    Return the bytes of the pipe if they are of another format, which has to be read as a whole. Raises ``UserError``
    for an unusable rate.
    """
    if rate is not None:
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise UserError(f"a rate of {rate:,} Hz given; rates from {LOWEST_RATE} to {HIGHEST_RATE:,} Hz are read")
        return SoundStream(rate, _blocks(pipe, 1, rate))
    head = pipe.read(_RIFF)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return head + pipe.read()
    form = b""
    while True:
        chunk = pipe.read(_CHUNK)
        head, size = head + chunk, int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"data":
            break
        if len(chunk) < _CHUNK or size > _MOST:
            return head + pipe.read()
        content = pipe.read(size + size % 2)
        head, form = head + content, content if chunk[:4] == b"fmt " else form
    kind, channels, native, bits = (int.from_bytes(form[a:b], "little") for a, b in ((0, 2), (2, 4), (4, 8), (14, 16)))
    if kind not in (_PCM, _EXTENSIBLE) or bits != 8 * _BYTES or not channels:
        return head + pipe.read()
    if not LOWEST_RATE <= native <= HIGHEST_RATE:
        return head + pipe.read()
    sized = 0 < size < 0xFFFFFFFF - _MOST  # what records while it writes does not say how much follows
    return SoundStream(native, _blocks(pipe, channels, native, size if sized else None))


def _blocks(pipe: BinaryIO, channels: int, rate: int, size: int | None = None) -> Iterator[np.ndarray]:
    """Yield the mean over channels of blocks of samples, as they arrive, of up to ``size`` bytes."""
    frame = _BYTES * channels
    left, rest, read = size, b"", getattr(pipe, "read1", pipe.read)
    while left is None or left > 0:
        most = frame * max(1, round(_BLOCK * rate))
        content = read(most if left is None else min(left, most))
        if not content:
            return
        left = None if left is None else left - len(content)
        content = rest + content
        whole = len(content) // frame * frame
        rest = content[whole:]
        if whole:
            samples = np.frombuffer(content[:whole], "<i2").reshape(-1, channels)
            yield (samples.mean(1, dtype=np.float64) / 32768).astype(np.float32)


def microphone_sound(rate: int) -> SoundStream:
    """Open the default microphone at ``rate`` Hz. Raises ``UserError`` if there is none, or no sounddevice."""
    try:
        import sounddevice  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(_INSTALL) from None
    except OSError as error:  # its library of the system is missing
        raise UserError(f"the microphone cannot be read: {error}") from None
    return SoundStream(rate, _recorded(sounddevice, rate))


def _recorded(module: Any, rate: int) -> Iterator[np.ndarray]:
    try:
        with module.RawInputStream(samplerate=rate, channels=1, dtype="int16") as stream:
            while True:
                content, _ = stream.read(max(1, round(_BLOCK * rate)))
                yield (np.frombuffer(bytes(content), "<i2") / 32768).astype(np.float32)
    except KeyboardInterrupt:  # the end of the sound, whose last word is still to be written
        return
    except module.PortAudioError as error:
        raise UserError(f"the microphone cannot be read: {error}") from None
