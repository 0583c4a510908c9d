"""``Batch``: what a model sees in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

IGNORED = -100
"""The target of a position that has no loss, as in ``torch.nn.functional.cross_entropy``."""


@dataclass(frozen=True)
class Batch:
    """``ids`` (B, N) and ``targets``: (B, N), the id that follows each position or ``IGNORED``; or what else the task predicts.

    ``lengths`` (B,): the real tokens of each row, the rest being padding on the right; None if no row is padded.
    ``segments`` (B, N): the document of each position, counted from 0 in each row; None if rows are not packed.
    ``types`` (B, N): the type of each token, such as first and second text; None where the model tells none apart. All int64.
    """

    ids: Tensor
    targets: Tensor
    lengths: Tensor | None = None
    segments: Tensor | None = None
    types: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        """The same batch on ``device``."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{name: value.to(device) if isinstance(value, Tensor) else value for name, value in own.items()})

    @property
    def num_targets(self) -> int:
        """Positions, or rows, that have a loss."""
        return int((self.targets != IGNORED).sum())

    @property
    def num_tokens(self) -> int:
        """Tokens that the model reads, padding left out."""
        return self.ids.numel() if self.lengths is None else int(self.lengths.sum())

    @property
    def computed(self) -> tuple[int, int, int]:
        """Rows, their positions and those of their sources: what a forward pass computes, padding included."""
        return self.ids.shape[0], self.ids.numel(), 0


@dataclass(frozen=True)
class PairBatch(Batch):
    """Sources and targets. ``source`` (B, M) with ``source_lengths`` (B,) is for an encoder; without one, ``ids`` begin with
    the source, and ``prefix`` (B,) says how long it is."""

    source: Tensor | None = None
    source_lengths: Tensor | None = None
    prefix: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return super().num_tokens + (0 if self.source_lengths is None else int(self.source_lengths.sum()))

    @property
    def computed(self) -> tuple[int, int, int]:
        rows, positions, _ = super().computed
        return rows, positions, 0 if self.source is None else self.source.numel()
