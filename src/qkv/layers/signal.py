"""``Signal``: the input of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.layers.graph import Graph

WINDOW_EPS = 1e-5
"""Added to the variance of a window of a series before it is standardised."""


def placeholder(index: int, count: int, content: int = 0) -> int:
    """Id at each position of a value of the input number ``index`` of ``count`` inputs: -1 - index - count · content.

    ``content`` ≥ 0: number that tells values apart, so that rows of ids are equal only if their values are, such as a
    hash of the value; 0 where nothing compares rows.
    """
    return -1 - index - count * content


@dataclass(frozen=True)
class Signal:
    """Input of a model: B rows of N values, with optional facts about their positions.

    values (B, N, …): token ids (B, N), points (B, N, 2), or other values that the model's front end embeds. lengths
    (B): number of values without padding, which is on the right; None: no padding. positions (B or 1, N): position of
    each value, by default its index in the row; (B or 1, N, axes) for front ends with several axes. segments (B, N):
    document number in packed rows; only positions of the same document exchange information. types (B or 1, N): type
    of each value, such as 0 for the first and 1 for the second text; default: 0. prefix (B): number of first
    positions of each row that see each other under a mask with a prefix; must be read in one call. visible (B, N, N):
    True where a query (second axis) may see a key (third axis); combined with every mask by "and".

    graph: edges between the values, for the nodes of graphs; None for others.

    bag (B, F): features of each whole row for a wide path, such as hashed n-grams; counts (B, F): number of times that
    each occurs, 0 for padding.

    times (B or 1, N): real time of each value, where values are unevenly spaced; positions are whole numbers.

    inputs: values of other named inputs that stand in these rows, in order of their places, see ``placeholder``; each
    row of such a signal is one value, such as a picture.

    All but values, visible, counts and times are int64 or int32.
    """

    values: Tensor
    lengths: Tensor | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
    types: Tensor | None = None
    prefix: Tensor | None = None
    visible: Tensor | None = None
    bag: Tensor | None = None
    counts: Tensor | None = None
    times: Tensor | None = None
    graph: Graph | None = None
    inputs: Mapping[str, Signal] | None = None

    @classmethod
    def of(cls, values: Self | Tensor) -> Self:
        """Wrap ``values`` as a signal without further facts; a signal is returned unchanged."""
        return values if isinstance(values, cls) else cls(values)  # type: ignore[arg-type]

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]], device: torch.device | str | None = None) -> Self:
        """Signal of ids on ``device``, padded on the right with 0 where rows are of different length."""
        sizes = list(map(len, rows))
        if sizes.count(max(sizes)) == len(sizes):
            return cls(torch.tensor(rows, dtype=torch.long, device=device))
        several = [torch.tensor(row, dtype=torch.long) for row in rows]
        return cls(pad_sequence(several, batch_first=True).to(device), torch.tensor(sizes, device=device))

    @property
    def num_rows(self) -> int:
        """Number of rows, B."""
        return self.values.shape[0]

    def to(self, device: torch.device | str) -> Self:
        """Copy of the signal on ``device``."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "inputs"}
        moved = {name: value.to(device) for name, value in own.items() if value is not None}
        inputs = self.inputs and {name: signal.to(device) for name, signal in self.inputs.items()}
        return replace(self, inputs=inputs, **moved)
