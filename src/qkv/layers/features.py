"""``FeatureBag``, the input of a wide path, and functions that attach it to a signal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.layers.signal import WIDE as WIDE
from qkv.layers.signal import Signal


@dataclass(frozen=True)
class FeatureBag(Signal):
    """Features of each row for a wide path. values (B, F): ids of features, such as hashed n-grams.

    counts (B, F): number of times that each feature occurs, 0 for padding.
    """

    counts: Tensor | None = None

    @property
    def amounts(self) -> Tensor:
        """Counts (B, F); 1 for each feature if there are none."""
        return torch.ones_like(self.values, dtype=torch.float32) if self.counts is None else self.counts


def with_features(signal: Signal, features: Signal) -> Signal:
    """Return a copy of ``signal`` with the input of a wide path."""
    return replace(signal, inputs={**(signal.inputs or {}), WIDE: features})


def features_of(signal: Signal) -> Signal | None:
    """Return the input of a wide path in ``signal``; None if it has none."""
    return None if signal.inputs is None else signal.inputs.get(WIDE)
