"""``Batch``: what a model sees in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""The target of a position that has no loss, as in ``torch.nn.functional.cross_entropy``."""


@dataclass(frozen=True)
class Batch:
    """``ids`` (B, N) and ``targets`` (B, N), the id that follows each position or ``IGNORED``.

    ``lengths`` (B,): the real tokens of each row, the rest being padding on the right; None if no row is padded.
    ``segments`` (B, N): the document of each position, counted from 0 in each row; None if rows are not packed. All int64.
    """

    ids: Tensor
    targets: Tensor
    lengths: Tensor | None = None
    segments: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        segments = None if self.segments is None else self.segments.to(device)
        return Batch(self.ids.to(device), self.targets.to(device), lengths, segments)

    @property
    def num_targets(self) -> int:
        """Positions that have a loss."""
        return int((self.targets != IGNORED).sum())
