"""Small folders of images, one subfolder for each label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def pictures(folder: Path, count: int, side: int = 28) -> Path:
    """Write ``count`` grey images into ``folder``: bright noise with a dark half, left or right by label."""
    rng = np.random.default_rng(0)
    for i in range(count):
        label = ("left", "right")[i % 2]
        pixels = rng.integers(150, 256, (side, side), dtype=np.uint8)
        pixels[:, slice(0, side // 2) if label == "left" else slice(side // 2, side)] //= 8
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder
