"""Sounds in cells: names of files, sounds that are written as text, and sounds in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qkv.data.records.folders.layout import FileKind
from qkv.data.records.images.pictures import IMAGES

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".aifc", ".au", ".snd", ".caf", ".w64")
"""Extensions of sound files that libsndfile reads."""
SOUNDS = FileKind("sound", SUFFIXES)
URI = "data:audio/"
"""Beginning of a sound that is written as text (data URI, base64)."""
_BEGINNINGS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff")
"""First bytes of sound files."""
ARRAY = frozenset(("array", "sampling_rate"))
"""Keys of a sound in memory, as the library datasets has it."""


class Sound(NamedTuple):
    """Mono samples (S) in float32, from -1 to 1, with their ``rate`` in Hz. ``cut``: True if there was more."""

    samples: np.ndarray
    rate: int
    cut: bool = False


def holds_sounds(folder: Path) -> bool:
    """Return True if a folder holds more files of sounds than of images."""
    sounds, rest = SOUNDS.values(folder)
    return len(sounds) > sum(path.suffix.lower() in IMAGES.suffixes for path in rest)


def is_sound(value: object) -> bool:
    """Return True if a cell names a sound file, or holds a sound: its bytes, a data URI, or samples with their rate."""
    if isinstance(value, bytes):
        return value.startswith(_BEGINNINGS)
    if isinstance(value, str):
        return value.startswith(URI) or value.strip().lower().endswith(SUFFIXES)
    return is_sound_in_memory(value)


def is_sound_in_memory(value: object) -> bool:
    """Return True for a ``Sound``, a mapping with ``array`` and ``sampling_rate``, or a pair (array, rate)."""
    if isinstance(value, Sound) or (isinstance(value, Mapping) and set(value) >= ARRAY):
        return True
    return (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray) and isinstance(value[1], int)
    )
