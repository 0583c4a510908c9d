"""Positions that are new in a forward pass (``Arrival``), and one integer per row in host memory (``Counts``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Counts(tuple[int, ...]):
    """One integer per row, such as its length, as Python integers, so that reading them does not wait for a device."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Tensor | Iterable[int]) -> Self:
        """Create counts from an integer tensor (B), which is copied to the host, or from other integers."""
        if isinstance(values, Tensor):
            listed: list[int] = values.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            return cls(listed)
        return cls(values)

    @property
    def nbytes(self) -> int:
        """Size in bytes as an int64 tensor."""
        return 8 * len(self)

    def tolist(self) -> list[int]:
        """Return the counts as a list."""
        return list(self)

    def tensor(self, device: torch.device | str | None = None) -> Tensor:
        """Copy the counts to a tensor (B), int64, on ``device``."""
        return torch.tensor(self, dtype=torch.long, device=device)

    def rows(self, index: Sequence[int]) -> Self:
        """Return the counts of the rows with indices ``index``."""
        return type(self)(self[row] for row in index)

    def overwrite(self, to: Sequence[int], source: Sequence[int]) -> Self:
        """Return a copy in which the rows ``to`` have the counts of the rows ``source``."""
        changed = list(self)
        for a, b in zip(to, source, strict=True):
            changed[a] = self[b]
        return type(self)(changed)

    def join(self, other: Iterable[int]) -> Self:
        """Concatenate these counts with the counts ``other`` of further rows."""
        return type(self)((*self, *other))


class Arrival:
    """Positions that are new in a forward pass: N in each of B rows, after the positions of earlier passes.

    past (B): number of earlier positions.   lengths (B): number of new positions that are not padding, which is on the
    right; None: all.   start: common value of ``past`` if it is equal in all rows and nothing is padded, else None.
    end: max(past + lengths).

    Counts are in host memory; tensors are created at their first use, once for all layers.
    """

    def __init__(
        self,
        past: Counts,
        count: int,
        lengths: Tensor | Counts | None = None,
        device: torch.device | str | None = None,
    ):
        """``past``: number of earlier positions of each row. ``count``: N. ``device``: device of the tensors."""
        self.past, self.count, self.device = past, count, device
        self.lengths = lengths.tensor(device) if isinstance(lengths, Counts) else lengths
        first = past[0] if past else 0
        self.start = first if lengths is None and past.count(first) == len(past) else None
        self.after = self._after(lengths)
        """Number of positions of each row after the call, (B)."""
        self.end = first + count if self.start is not None else max(self.after, default=count)
        self._memo: dict[Hashable, Any] = {}

    def _after(self, lengths: Tensor | Counts | None) -> Counts:
        if self.start is not None:
            return Counts((self.start + self.count,) * len(self.past))
        if lengths is None:
            return Counts(p + self.count for p in self.past)
        return Counts(map(int.__add__, self.past, Counts.of(lengths)))

    @cached_property
    def counts(self) -> Counts:
        """Number of new positions of each row that are not padding, (B)."""
        return Counts(map(int.__sub__, self.after, self.past))

    @cached_property
    def positions(self) -> Tensor:
        """Position in its row of each new token, (B, N), or (1, N) unless ``start`` is None."""
        if self.start is None:
            return self.past_tensor[:, None] + self.steps
        if self.count == 1:
            return torch.full((1, 1), self.start, dtype=torch.long, device=self.device)
        return torch.arange(self.start, self.start + self.count, device=self.device)[None]

    @cached_property
    def past_tensor(self) -> Tensor:
        """Tensor of ``past`` on the device: (B), or (1) unless ``start`` is None."""
        return (self.past if self.start is None else Counts((self.start,))).tensor(self.device)

    @cached_property
    def after_tensor(self) -> Tensor:
        """Tensor of ``after`` on the device: (B), or (1) unless ``start`` is None."""
        return self.past_tensor + (self.count if self.lengths is None else self.lengths)

    @cached_property
    def steps(self) -> Tensor:
        """Tensor of 0 to N - 1."""
        return torch.arange(self.count, device=self.device)

    @cached_property
    def real(self) -> Tensor | None:
        """Mask (B, N): True where a new position is not padding; None without padding."""
        return None if self.lengths is None else self.steps < self.lengths[:, None]

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, cached under ``key``: computed once per forward pass and shared by all layers."""
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]
