"""Images as sequences of patches of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.processors.image_codes import order_of
from qkv.data.processors.images import ImageProcessor
from qkv.data.processors.processor import Processor
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.image_sequences import ImagePatches

LEVELS = 256
"""Number of levels of a pixel."""


@implements(ImagePatches)
class ImagePatchesProcessor(Processor):
    """Patches of images: a file name, an array or a Pillow image -> levels (N, F) of the pixels of each patch.

    F = C · P² features: the channels one after the other, each row by row.
    """

    example = ImageProcessor.example
    automatic = False
    spec: ImagePatches

    def __init__(self, spec: ImagePatches):
        super().__init__(spec)
        self.pixels = ImageProcessor(spec.images)

    def fitted(self, values: Sequence[Any]) -> ImagePatches:
        images = self.pixels.fitted(values)
        # The sizes are set together, since they are checked against the patches.
        spec = self.spec.changed(images=images)
        grid = (images.height or 0) // spec.patch, (images.width or 0) // spec.patch
        return spec.changed(grid=grid)

    def encode(self, value: Any) -> np.ndarray:
        pixels, size = self.pixels.encode(value), self.spec.patch
        channels, height, width = pixels.shape
        blocks = pixels.reshape(channels, height // size, size, width // size, size).transpose(1, 3, 0, 2, 4)
        return np.ascontiguousarray(blocks.reshape(-1, channels * size * size)[order_of(self.spec)])

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        """Build the signal of standardised patches, (B, N, F), without start patches and without noise."""
        return Signal(self.standardised(torch.from_numpy(np.stack(encoded)) + 0.5))

    def standardised(self, levels: Tensor) -> Tensor:
        """Standardise levels (…, F) from 0 to 256, to which noise has been added."""
        mean, deviation = self._units()
        return (levels / LEVELS - mean) / deviation

    @property
    def level_nats(self) -> float:
        """Mean log of the features' standard deviations in levels.

        A loss in nats of a density over standardised values plus this mean is the loss of the density over levels.
        """
        return float((LEVELS * self._units()[1].double()).log().mean())

    def images(self, patches: Tensor) -> list[np.ndarray]:
        """Convert standardised patches (B, N, F) to images (H, W) or (H, W, 3)."""
        spec, mean, deviation = self.spec, *self._units()
        levels = (
            ((patches.to("cpu", torch.float32) * deviation + mean) * LEVELS)
            .floor()
            .clamp(0, LEVELS - 1)
            .to(torch.uint8)
        )
        by_row = torch.empty_like(levels)
        by_row[:, torch.from_numpy(order_of(spec))] = levels
        assert spec.grid is not None
        (rows, columns), size = spec.grid, spec.patch
        blocks = by_row.unflatten(2, (-1, size, size)).unflatten(1, (rows, columns))  # (B, rows, columns, C, P, P)
        whole = blocks.permute(0, 1, 4, 2, 5, 3).reshape(len(levels), rows * size, columns * size, -1).numpy()
        return [image[..., 0] if image.shape[2] == 1 else image for image in whole]

    def _units(self) -> tuple[Tensor, Tensor]:
        """Return (mean, standard deviation) of each feature of a patch, both (F)."""
        images, count = self.spec.images, self.spec.patch**2
        assert images.mean is not None
        assert images.deviation is not None
        return tuple(torch.tensor(each).repeat_interleave(count) for each in (images.mean, images.deviation))  # type: ignore[return-value]

    def picture(self, value: Any) -> str | None:
        return self.pixels.picture(value)

    def shown(self, value: Any) -> str:
        return self.pixels.shown(value)
