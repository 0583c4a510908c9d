"""``Signal``: what a model reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Signal:
    """B rows of values, and what a caller says of their N positions.

    values (B, N, …): token ids (B, N), points (B, N, 2), or whatever else the front end of the model embeds.
    lengths (B): how many of the N are real; the rest is padding on the right. None: all.
    positions (B or 1, N): place of each value, where that is not its place in the row; of several axes (B or 1, N, axes), for a front end
        that has so many.
    segments (B, N): document numbers of packed rows; only vectors of one document exchange information.
    types (B or 1, N): type of each value, such as first and second text, where the model reads types; 0 where none are given.
    prefix (B): how many first positions of each row see each other, where the mask has a prefix; read in one call.
    visible (B, N, N): which keys a query may see, joined with every mask by "and".

    All but values and visible are int64 or int32.
    """

    values: Tensor
    lengths: Tensor | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
    types: Tensor | None = None
    prefix: Tensor | None = None
    visible: Tensor | None = None

    @classmethod
    def of(cls, values: Self | Tensor) -> Self:
        """``values`` as a signal of which nothing else is said, unless it is one."""
        return values if isinstance(values, cls) else cls(values)  # type: ignore[arg-type]

    @property
    def num_rows(self) -> int:
        """B."""
        return self.values.shape[0]

    @property
    def num_positions(self) -> int:
        """B · N, padding included."""
        return self.values.shape[:2].numel()

    @property
    def num_read(self) -> int:
        """Real positions, padding left out."""
        return self.num_positions if self.lengths is None else int(self.lengths.sum())

    def to(self, device: torch.device | str) -> Self:
        """The same signal on ``device``."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in own.items() if value is not None})
