"""Folder of clips of a bar that moves to the left or to the right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def bars(direction: int, place: int) -> np.ndarray:
    """Clip (4, 8, 8) of a bar that moves along the columns, from the column ``place``."""
    clip = np.zeros((4, 8, 8), np.uint8)
    for time in range(4):
        clip[time, :, (place + direction * time) % 8] = 255
    return clip


def clips(folder: Path, each: int = 50) -> Path:
    """Write ``each`` animations of both directions."""
    rng = np.random.default_rng(0)
    for name, direction in (("left", -1), ("right", 1)):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            frames = [Image.fromarray(frame) for frame in bars(direction, int(rng.integers(8)))]
            place = folder / name / f"{number}.gif"
            frames[0].save(place, save_all=True, append_images=frames[1:], duration=40, loop=0, disposal=1)
    return folder


def write_frames(folder: Path, each: int = 2, first: int = 0) -> Path:
    """Write ``each`` clips of both directions as folders of numbered frames."""
    for name, direction in (("left", -1), ("right", 1)):
        for number in range(each):
            place = folder / name / f"clip{number}"
            place.mkdir(parents=True)
            for i, frame in enumerate(bars(direction, number)):
                Image.fromarray(frame).save(place / f"frame{first + i}.png")
    return folder
