"""What travels beside x through a stack: one frozen value from which a branch takes what it needs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Tap = Callable[[str, Tensor], Tensor | None]
"""Called with a dotted path and what was computed there; a returned tensor takes its place."""


@dataclass(frozen=True)
class Context:
    """positions (B or 1, N): where each vector stands in its row (in its document, for packed rows).

    lengths (B): how many of the N are real, the rest is padding on the right; None for all.
    segments (B, N): document numbers of packed rows; only vectors of one document exchange information.
    past (B): positions seen before this call; None where nothing is remembered.
    start: ``past`` as a number where it is the same in every row and nothing is padded, else None.
    end: the largest past + length.
    """

    positions: Tensor
    lengths: Tensor | None = None
    segments: Tensor | None = None
    past: Tensor | None = None
    start: int | None = 0
    end: int = 0
    tap: Tap | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def valid(self) -> Tensor | None:
        """Which of the N are real, (B, N); None for all."""
        if self.lengths is None:
            return None
        return self.once("valid", lambda: torch.arange(self.positions.shape[1], device=self.positions.device) < self._lengths()[:, None])

    @property
    def document_starts(self) -> Tensor | None:
        """Where a new document begins in packed rows, (B, N)."""
        if self.segments is None:
            return None
        starts = torch.ones_like(self.segments, dtype=torch.bool)
        starts[:, 1:] = self.segments[:, 1:] != self.segments[:, :-1]
        return starts

    def _lengths(self) -> Tensor:
        assert self.lengths is not None
        return self.lengths

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """``compute()``, done by the first layer that asks and shared with the others."""
        if torch.compiler.is_compiling():  # the compiler merges what is equal, and cannot look up a spec
            return compute()
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]
