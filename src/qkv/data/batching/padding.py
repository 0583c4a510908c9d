"""Batches of rows of different lengths, padded on the right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor


def padded(
    rows: Sequence[Sequence[int] | np.ndarray], filler: int = 0, dtype: DTypeLike = np.int64
) -> tuple[Tensor, Tensor]:
    """Pad rows of different length on the right with ``filler``; return (values (B, longest) of ``dtype``, lengths
    (B)).
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    values = np.full((len(rows), max(1, int(lengths.max(initial=0)))), filler, dtype)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    return torch.from_numpy(values), torch.from_numpy(lengths)


def padded_tables(rows: Sequence[np.ndarray], filler: int) -> tuple[Tensor, Tensor]:
    """Pad tables (n, f) of different sizes with ``filler`` at the ends of both axes; return (values (B, N, F) int64,
    lengths n (B)).
    """
    most, widest = max(len(row) for row in rows), max(row.shape[1] for row in rows)
    values = np.full((len(rows), most, widest), filler, np.int64)
    for place, row in enumerate(rows):
        values[place, : row.shape[0], : row.shape[1]] = row
    return torch.from_numpy(values), torch.tensor([len(row) for row in rows])


def lengths_or_none(ids: Tensor, lengths: Tensor) -> Tensor | None:
    """Return ``lengths`` (B) if any row of ``ids`` (B, N) is padded, else None, which saves masking."""
    return None if bool((lengths == ids.shape[1]).all()) else lengths
