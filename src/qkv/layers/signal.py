"""``Signal``: the input of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

WIDE = "wide"
"""Name of the input that a wide path reads, in ``Signal.inputs``; it has one entry per row."""


def placeholder(index: int, count: int, content: int = 0) -> int:
    """Return the placeholder id -1 - index - count · content for values of input number ``index`` of ``count`` inputs.

    The id stands at each position of the value. ``content`` ≥ 0: a number that distinguishes values, such as a hash, so
    that rows with different values have different ids; 0 if rows are never compared.
    """
    return -1 - index - count * content


@dataclass(frozen=True)
class Signal:
    """Input of a model: B rows of N values, with optional lengths, positions, segments, masks and other inputs.

    values (B, N, …): token ids (B, N), points (B, N, 2), or other values that the model's front end embeds. lengths
    (B): number of unpadded values, with padding on the right; None: no padding. positions (B or 1, N): position of each
    value, by default its index in the row; (B or 1, N, axes) for front ends with several axes. segments (B, N):
    document number in packed rows; only positions of the same document exchange information. types (B or 1, N): type of
    each value, such as 0 for the first and 1 for the second text; default: 0. prefix (B): number of first positions of
    each row that see each other under a mask with a prefix; must be read in one call. visible (B, N, N): True where a
    query (second axis) may see a key (third axis); combined with every mask by "and".

    inputs: other named inputs. The vectors of the front end ``joined`` replace the placeholder ids of these rows in
    order, see ``placeholder``; each row of such a signal is one value, such as an image.

    All but values and visible are int64 or int32. Subclasses add fields that only some signals have, such as edges or
    times; a front end converts its input to the subclass that it reads by ``of``.
    """

    by_rows: ClassVar[bool] = True
    """True if all fields have one entry per row, or one for all rows, so that rows can be taken out."""

    values: Tensor
    lengths: Tensor | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
    types: Tensor | None = None
    prefix: Tensor | None = None
    visible: Tensor | None = None
    inputs: Mapping[str, Signal] | None = None

    @classmethod
    def of(cls, values: Signal | Tensor) -> Self:
        """Convert a tensor or a signal to this class; the class's additional fields get their defaults.

        A signal of this class is returned unchanged.
        """
        if isinstance(values, cls):
            return values
        if isinstance(values, Tensor):
            return cls(values)
        return cls(**{field.name: getattr(values, field.name) for field in fields(Signal)})

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]], device: torch.device | str | None = None) -> Self:
        """Build a signal of ids on ``device``, padded on the right with 0 if rows differ in length."""
        sizes = list(map(len, rows))
        if sizes.count(max(sizes)) == len(sizes):
            return cls(torch.tensor(rows, dtype=torch.long, device=device))
        several = [torch.tensor(row, dtype=torch.long) for row in rows]
        return cls(pad_sequence(several, batch_first=True).to(device), torch.tensor(sizes, device=device))

    @property
    def num_rows(self) -> int:
        """Number of rows, B."""
        return self.values.shape[0]

    def some_rows(self, first: int, last: int) -> Self | None:
        """Return rows ``first`` to ``last`` (excluded) as views; None if rows cannot be taken out of this signal."""
        if not self.by_rows or (self.inputs or {}).keys() - {WIDE}:
            return None
        inputs = self.inputs and {name: signal.some_rows(first, last) for name, signal in self.inputs.items()}
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "inputs"}
        cut = {
            name: value[first:last]
            for name, value in tensors.items()
            if isinstance(value, Tensor) and len(value) == self.num_rows
        }
        return replace(self, inputs=inputs, **cut)

    def unpadded(self, vectors: Tensor) -> Tensor:
        """Select the vectors (M, D) at unpadded positions, row by row, from ``vectors`` (B, N, D)."""
        if self.lengths is None:
            return vectors.flatten(0, 1)
        return vectors[torch.arange(vectors.shape[1], device=vectors.device) < self.lengths[:, None]]

    def to(self, device: torch.device | str) -> Self:
        """Copy the signal to ``device``."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "inputs"}
        moved = {name: value.to(device) for name, value in values.items() if value is not None}
        inputs = self.inputs and {name: signal.to(device) for name, signal in self.inputs.items()}
        return replace(self, inputs=inputs, **moved)
