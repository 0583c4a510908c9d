"""Images that a run generates."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.data.processors.sheets import sheet
from qkv.runs.run import Run, task_of

_COLUMNS = 8


def generated_images(run: Run, count: int = 1, label: str | None = None, **options: Any) -> list[np.ndarray]:
    """Generate ``count`` images with ``run``, arrays (H, W) or (H, W, 3) of uint8.

    ``label``: label of the images, for models that read labels; None: all labels in turn. ``options``: fields of
    ``qkv.spec.generation.Generation`` such as temperature, top_k and seed. Raises ``UserError``.
    """
    generation = run.recipe.sample.requested(**{"seed": None, **options})
    return task_of(run).images(run.model, run.vocabulary, generation, count, label)


def as_png(images: Sequence[np.ndarray]) -> bytes:
    """Encode one image, or several images as a grid, as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    whole = images[0] if len(images) == 1 else sheet(images, min(len(images), _COLUMNS))
    Image.fromarray(whole).save(buffer, "PNG")
    return buffer.getvalue()
