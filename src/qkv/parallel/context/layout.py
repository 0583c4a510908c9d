"""Layout of a row over ranks: which positions each rank holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.system.errors import UserError


@dataclass(frozen=True)
class RankLayout:
    """Layout of rows of N positions over R ranks in chunks of equal size.

    folded: rank r holds chunks r and 2 R - 1 - r of 2 R, so that under a causal mask all ranks compute equally much
    (zig-zag). Otherwise it holds chunk r of R.
    """

    size: int
    folded: bool = True

    @property
    def chunks(self) -> int:
        """Number of chunks of a row."""
        return self.size * (1 + self.folded)

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Return the indices of the chunks that ``rank`` holds, in ascending order."""
        return (rank, self.chunks - 1 - rank) if self.folded else (rank,)

    def rank_of(self, chunk: int) -> int:
        """Return the rank that holds chunk number ``chunk``."""
        return min(chunk, self.chunks - 1 - chunk) if self.folded else chunk

    def positions(self, rank: int, count: int) -> Tensor:
        """Return the indices (``count``) in the row of the ``count`` positions that ``rank`` holds."""
        chunk = count // (1 + self.folded)
        return torch.cat([torch.arange(i * chunk, (i + 1) * chunk) for i in self.of_rank(rank)])

    def order(self, count: int) -> Tensor:
        """Return the place of each position of a row, (N), among those of all ranks one after the other.

        ``count``: number of positions of a rank, N / R.
        """
        return torch.cat([self.positions(rank, count) for rank in range(self.size)]).argsort()

    def share(self, length: int) -> int:
        """Return the number of positions of a rank, of rows of ``length``; raises ``UserError`` if chunks differ."""
        if length % self.chunks:
            raise UserError(
                f"rows of {length} positions cannot be cut into {self.chunks} equal chunks for {self.size} ranks; pad "
                f"them to a multiple of {self.chunks}"
            )
        return length // self.size

    def part(self, x: Tensor, rank: int, axis: int = 1) -> Tensor:
        """Return the positions of ``x`` along ``axis`` that ``rank`` holds."""
        return x.index_select(axis, self.positions(rank, self.share(x.shape[axis])).to(x.device))

    def part_of_signal(self, signal: Signal, rank: int) -> Signal:
        """Return the positions of rows that ``rank`` holds, each with its place in the row (or in its document)."""
        wrong = next((name for name in _WHOLE if getattr(signal, name) is not None), None)
        if wrong:
            raise UserError(f"a row with {_WHOLE[wrong]} ({wrong}) cannot be cut over ranks; train with context: 1")
        length = signal.values.shape[1]
        index = self.positions(rank, self.share(length)).to(signal.values.device)
        positions = places(signal).expand(-1, length)[:, index]
        lengths = None if signal.lengths is None else (index < signal.lengths[:, None]).sum(1)
        segments, types = (None if t is None else t[:, index] for t in (signal.segments, signal.types))
        values = signal.values[:, index]
        return replace(signal, values=values, positions=positions, lengths=lengths, segments=segments, types=types)


_WHOLE = {"prefix": "a prefix", "visible": "a table of visible keys", "inputs": "values of other inputs"}
"""Fields of a signal that no rank can read without the others: descriptions for the message."""


def places(signal: Signal) -> Tensor:
    """Return the position (B or 1, N) of each value of whole rows in its row, or in its document if rows are packed."""
    if signal.positions is not None:
        return signal.positions
    steps = torch.arange(signal.values.shape[1], device=signal.values.device)[None]
    if signal.segments is None:
        return steps
    starts = torch.ones_like(signal.segments, dtype=torch.bool)
    starts[:, 1:] = signal.segments[:, 1:] != signal.segments[:, :-1]
    return steps - torch.where(starts, steps, 0).cummax(1).values
