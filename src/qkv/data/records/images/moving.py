"""Moving garments: clips generated from images, similar to Moving MNIST (Srivastava et al. 2015)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.data.records.readers.idx import idx_array
from qkv.data.records.table import Row, Table

FRAMES, SIDE = 8, 32
DIRECTIONS = {
    "right": (0, 1),
    "down right": (1, 1),
    "down": (1, 0),
    "down left": (1, -1),
    "left": (0, -1),
    "up left": (-1, -1),
    "up": (-1, 0),
    "up right": (-1, 1),
}
"""Directions of movement: steps along rows and columns."""
SPEEDS = (1, 2)
"""Pixels per frame along each axis of the direction."""
_MOST = 12_000
"""Maximum number of clips, one per garment."""


def moving_garments(images: TextSource) -> Table:
    """Build a table of clips (8, 32, 32), each of a garment at half its size that moves in one of eight directions, its
    label.

    Garments that leave the picture on one side enter it on the other, so that every position is equally likely and a
    single frame says nothing about the label. Position, direction and speed of clip i are drawn from a generator with
    seed i.
    """
    pixels = idx_array(images)[:_MOST]

    def parse() -> Iterator[Row]:
        for number, image in enumerate(pixels):
            clip, label = moved(image, number)
            yield Row(number + 1, {"image": clip, "label": label})

    digest = hashlib.sha256(f"{images.digest()} moving".encode()).hexdigest()
    return Table(images.name, ("image", "label"), parse, digest, {"image": ("image",), "label": ("label",)})


def moved(image: np.ndarray, seed: int) -> tuple[np.ndarray, str]:
    """Return (clip (frames, height, width) of an image at half its size, name of the direction)."""
    rng = np.random.default_rng(seed)
    rows, columns = (side // 2 for side in image.shape)
    small = image[: 2 * rows, : 2 * columns].reshape(rows, 2, columns, 2).mean((1, 3)).round().astype(np.uint8)
    label = str(rng.choice(list(DIRECTIONS)))
    speed, first = int(rng.choice(SPEEDS)), rng.integers(SIDE, size=2)
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    canvas[:rows, :columns] = small
    places = first + speed * np.arange(FRAMES)[:, None] * np.array(DIRECTIONS[label])
    return np.stack([np.roll(canvas, place, (0, 1)) for place in places]), label
