"""Read IDX files: arrays of bytes with their shape, the format of MNIST (LeCun et al. 1998)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError

_BYTES = 0x08
"""IDX type code of unsigned bytes."""


def idx_array(source: TextSource) -> np.ndarray:
    """Read the array of unsigned bytes in an IDX file. Raises ``UserError`` for a file of another format or size."""
    content = b"".join(source.raw())
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _BYTES or len(content) < 4 + 4 * content[3]:
        raise UserError(f"{source.name} is not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape))
    if values.size != np.prod(shape, dtype=np.int64):
        raise UserError(f"{source.name} has {values.size:,} values, but its shape is {' × '.join(map(str, shape))}")
    return values.reshape(shape)


def idx_images(images: TextSource, labels: TextSource, names: Sequence[str] = ()) -> Table:
    """Build the table of images (N, H, W) and their labels (N) from two IDX files. ``names``: class names by number.

    Raises ``UserError`` if the files do not fit together.
    """
    pixels, classes = idx_array(images), idx_array(labels)
    if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
        shapes = " and ".join(" × ".join(map(str, each.shape)) for each in (pixels, classes))
        raise UserError(f"{images.name} and {labels.name} have the shapes {shapes}; give images (N, H, W), labels (N)")

    def parse() -> Iterator[Row]:
        for line, (image, label) in enumerate(zip(pixels, classes.tolist(), strict=True), 1):
            yield Row(line, {"image": image, "label": names[label] if names else str(label)})

    digest = hashlib.sha256((images.digest() + labels.digest()).encode()).hexdigest()
    return Table(images.name, ("image", "label"), parse, digest, {"image": ("image",), "label": ("label",)})
