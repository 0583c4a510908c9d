"""Small sounds in files: tones whose heights are words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qkv.data.records.sounds.sound_files import Sound, sound_bytes

RATE = 2000
TONES = {"a": 150.0, "b": 300.0, "c": 600.0}


def tune(text: str, seed: int, each: int = 160) -> Sound:
    """A sound of a tone of ``each`` samples for each letter, with a rest at its end, in noise."""
    times = np.arange(each) / RATE
    rest = times > 0.75 * each / RATE
    draw = np.random.default_rng(seed)
    tones = [np.where(rest, 0, 0.5 * np.sin(2 * np.pi * TONES[letter] * times)) for letter in text]
    samples = np.concatenate(tones) + 0.02 * draw.normal(size=each * len(text))
    return Sound(samples.astype(np.float32), RATE)


def write_tunes(folder: Path, texts: Sequence[str]) -> Path:
    """Write a table of files, texts and speakers, and the sounds beside it."""
    lines = ["file,text,speaker"]
    for seed, text in enumerate(texts):
        (folder / f"{seed}.wav").write_bytes(sound_bytes(tune(text, seed)))
        lines.append(f"{seed}.wav,{text},{'xy'[seed % 2]}")
    (folder / "tunes.csv").write_text("\n".join(lines) + "\n")
    return folder / "tunes.csv"
