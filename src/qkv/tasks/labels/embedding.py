"""Projection of vectors to two dimensions, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST = 1000
"""Maximum number of points in the chart; of more vectors, an evenly spaced subset is shown."""


def principal(vectors: Tensor, axes: int = 2) -> Tensor:
    """Project vectors (n, D) on their first principal components (Pearson 1901): (n, axes), with fixed signs."""
    centred = vectors.double() - vectors.double().mean(0)
    _, _, rows = torch.linalg.svd(centred, full_matrices=False)
    rows = rows[:axes] * rows[:axes].gather(1, rows[:axes].abs().argmax(1, keepdim=True)).sign()
    projections = centred @ rows.t()
    return torch.nn.functional.pad(projections, (0, axes - projections.shape[1]))


def points_section(title: str, vectors: Tensor, classes: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """Build a report section: vectors (n, D) as points in their first two principal components, coloured by class."""
    places = principal(vectors.cpu())
    indices = np.linspace(0, len(places) - 1, min(MOST, len(places))).astype(np.int64)
    names, note = list(labels), "Last hidden vectors in two dimensions (principal components), coloured by true class."
    if len(indices) < len(places):
        note += f" {len(indices):,} of {len(places):,} are shown."
    groups = [
        {"name": name, "points": [[round(v, 4) for v in places[i].tolist()] for i in indices if classes[i] == c]}
        for c, name in enumerate(names)
    ]
    return {"kind": "points", "title": title, "note": note, "groups": [group for group in groups if group["points"]]}
