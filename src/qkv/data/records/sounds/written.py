"""Bytes of sounds in several formats, for files and answers of a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import resampled, sound_bytes
from qkv.system.errors import UserError, nearest

MEDIA = {"wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg", "opus": "audio/ogg", "pcm": "audio/pcm"}
"""Formats in which sounds are written -> media type. pcm: 16 bits, little-endian, without a header."""
_SUBTYPES = {
    "wav": ("PCM_16", "WAV"),
    "flac": ("PCM_16", "FLAC"),
    "mp3": ("MPEG_LAYER_III", "MP3"),
    "opus": ("OPUS", "OGG"),
}
_RATES = {
    "opus": (8_000, 12_000, 16_000, 24_000, 48_000),
    "mp3": (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
}
"""Rates of formats that do not have every rate, in Hz, ascending."""


def format_of(path: Path) -> str:
    """Return the format that the extension of a file names. Raises ``UserError`` for another one."""
    ending = path.suffix.lower().removeprefix(".")
    if ending in MEDIA:
        return ending
    noun = f"as {ending!r}" if ending else "without an extension"
    raise UserError(f"{path}: a sound cannot be written {noun}; {nearest(ending, MEDIA)}")


def written_sound(sound: Sound, form: str) -> bytes:
    """Return a sound as the bytes of a file in a format of ``MEDIA``; samples beyond -1 and 1 are clipped.

    A rate that the format does not have becomes its next higher one. Raises ``UserError`` without the packages.
    """
    if form == "pcm":
        return pcm_bytes(sound.samples)
    rates = _RATES.get(form, (sound.rate,))
    if sound.rate not in rates:
        rate = next((rate for rate in rates if rate > sound.rate), rates[-1])
        pieces = resampled(iter([sound.samples]), sound.rate, rate)
        sound = Sound(np.concatenate([*pieces]), rate)
    return sound_bytes(sound._replace(samples=sound.samples.clip(-1, 1)), *_SUBTYPES[form])


def pcm_bytes(samples: np.ndarray) -> bytes:
    """Return samples as integers of 16 bits, little-endian; those beyond -1 and 1 are clipped."""
    return (samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes()
