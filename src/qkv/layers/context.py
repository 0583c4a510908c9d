"""What travels beside x through a stack: one frozen value from which a branch takes what it needs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor

from qkv.ops.documents import starts_of

T = TypeVar("T")
Tap = Callable[[str, Tensor], Tensor | None]
"""Called with a dotted path and what was computed there; a returned tensor takes its place."""


class MemoryWeights:
    """A tap that is also given the weights with which branches read a memory: (B, H, N, M), named after the branch with ``.weights`` behind.

    They are computed for such a tap alone, by the reference, beside what the branch itself computes. ``seen``: them by the branch's name.
    """

    def __init__(self) -> None:
        self.seen: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> None:
        branch, dot, last = name.rpartition(".")
        if dot and last == "weights":
            self.seen[branch] = value


class Memory(NamedTuple):
    """What a stack reads beside its own sequence: the output of an encoder.

    vectors: one tensor (B, M, D) that every layer reads, or one for each layer.   lengths (B): how many of the M are real.
    """

    vectors: tuple[Tensor, ...]
    lengths: Tensor

    def of_layer(self, i: int) -> Memory:
        """What layer ``i`` reads."""
        return self if len(self.vectors) == 1 else Memory(self.vectors[i : i + 1], self.lengths)

    def grid(self) -> tuple[Tensor, Tensor]:
        """(the vectors of one layer (B, M, D), which of them are real (B, M))."""
        (vectors,) = self.vectors
        return vectors, torch.arange(vectors.shape[1], device=vectors.device) < self.lengths[:, None]


class Given(TypedDict, total=False):
    """What a caller may say of the N positions of a call, beside how many are real.

    segments (B, N): document numbers of packed rows; only vectors of one document exchange information.
    prefix (B): how many first positions of each row see each other, where the mask has a prefix; read in one call.
    positions (B or 1, N): where each vector stands, where that is not its place in the row.
    visible (B, N, N): which keys a query may see, joined with every mask by and.
    memory: the encoder's output, without a state; with a state it was given to ``init_state``.
    types (B or 1, N): the type of each token, where the front end has types; 0 where nothing is given.
    """

    segments: Tensor | None
    prefix: Tensor | None
    positions: Tensor | None
    visible: Tensor | None
    memory: Memory | None
    types: Tensor | None


@dataclass(frozen=True)
class Context:
    """positions (B or 1, N): where each vector stands in its row (in its document, for packed rows).

    lengths (B): how many of the N are real, the rest is padding on the right; None for all.
    segments, prefix, visible, memory, types: see ``Given``.
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
    prefix: Tensor | None = None
    visible: Tensor | None = None
    memory: Memory | None = None
    types: Tensor | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def of_layer(self, i: int) -> Context:
        """The same with the memory that layer ``i`` reads."""
        if self.memory is None or len(self.memory.vectors) == 1:
            return self
        return replace(self, memory=self.memory.of_layer(i))

    @property
    def valid(self) -> Tensor | None:
        """Which of the N are real, (B, N); None for all."""
        if self.lengths is None:
            return None
        return self.once("valid", lambda: torch.arange(self.positions.shape[1], device=self.positions.device) < self._lengths()[:, None])

    @property
    def document_starts(self) -> Tensor | None:
        """Where a new document begins in packed rows, (B, N)."""
        return None if self.segments is None else starts_of(self.segments)

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
