"""Read shapes: pictures in any form are converted to the points of their contours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qkv.data.features.contours import filled, sampled, trace
from qkv.data.processors.processor import Processor
from qkv.data.records.images.image_files import SHOWN, converted, image_name, opened_image, picture_of
from qkv.data.records.images.pictures import as_uri
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.contours import Contours
from qkv.spec.signals.images import SIMPLE

_FINE = 4
"""Number of pixels along each axis that are averaged to one simple feature."""


@implements(Contours)
class ContourProcessor(Processor):
    """Contours: a picture as for ``ImageProcessor`` -> points (N, 3) of x, y, and 1 at the first point of each
    contour.
    """

    example = "shape.png"
    simple = "silhouettes"
    automatic = False
    spec: Contours

    def fitted(self, values: Sequence[Any]) -> Contours:
        return self.spec

    def encode(self, value: Any) -> np.ndarray:
        contours = sampled(trace(self.field(value)), self.spec.points, self.spec.sampling)
        if not contours:
            raise Unusable(f"{image_name(value)} shows no shape: all of its pixels are equal")
        points = np.concatenate(contours)
        low, high = points.min(0), points.max(0)
        first = np.concatenate([np.arange(len(each)) == 0 for each in contours])
        places = (points - (low + high) / 2) / (max(*(high - low), 1e-6) / 2)
        return np.column_stack((places, first)).astype(np.float32)

    def field(self, value: Any) -> np.ndarray:
        """Return the shape in a picture as numbers (H, W) from 0 (outside) to 1. Raises ``Unusable``."""
        image = opened_image(value)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            alpha = image.getchannel("A")
            if alpha.getextrema()[0] < 255:
                image.close()
                return np.asarray(self._reduced(alpha), np.float64) / 255
        grey = np.asarray(self._reduced(converted(opened_image(value), "L", image_name(value))), np.float64)
        border = np.concatenate((grey[0], grey[-1], grey[:, 0], grey[:, -1]))
        distance = np.abs(grey - np.median(border))
        return distance / max(1.0, distance.max())

    def _reduced(self, image: Any) -> Any:
        image.thumbnail((self.spec.side, self.spec.side))
        return image

    def size(self, encoded: np.ndarray) -> int:
        return 1  # all shapes take the same number of positions

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        return Signal(torch.from_numpy(np.stack(encoded)))

    def features(self, encoded: np.ndarray) -> np.ndarray:
        fine = _drawn(encoded, SIMPLE * _FINE).reshape(SIMPLE, _FINE, SIMPLE, _FINE)
        return fine.mean((1, 3)).ravel().astype(np.float32)

    def picture(self, value: Any) -> str | None:
        return picture_of(value)

    def picture_read(self, encoded: np.ndarray) -> str:
        return as_uri(np.where(_drawn(encoded, SHOWN), 0, 255).astype(np.uint8))

    def shown(self, value: Any) -> str:
        return image_name(value, "shape")


def _drawn(encoded: np.ndarray, side: int) -> np.ndarray:
    """Draw the mask (side, side) of the shape with the points ``encoded``, inside a margin of 5 % on every side."""
    places = (encoded[:, :2] * 0.9 + 1) / 2 * (side - 1)
    return filled(np.split(places, np.flatnonzero(encoded[:, 2])[1:]), side, side)
