"""Context of a forward pass: positions, lengths, masks, memory and tap, passed to every branch beside x."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor

from qkv.ops.documents import starts_of

T = TypeVar("T")
Tap = Callable[[str, Tensor], Tensor | None]
"""Observer called with the dotted path and value of an intermediate result; a returned tensor replaces the value."""


class MemoryWeights:
    """Tap that records cross-attention weights (B, H, N, M), received under ``<branch>.weights``.

    The weights are computed for this tap only, by the reference, in addition to the branch's own computation.
    ``seen``: weights by branch name.
    """

    def __init__(self) -> None:
        self.seen: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> None:
        branch, dot, last = name.rpartition(".")
        if dot and last == "weights":
            self.seen[branch] = value


class Memory(NamedTuple):
    """Second input of a stack, e.g. the output of an encoder.

    vectors: one tensor (B, M, D) for all layers, or one per layer.   lengths (B): number of unpadded vectors.
    """

    vectors: tuple[Tensor, ...]
    lengths: Tensor

    def of_layer(self, i: int) -> Memory:
        """The memory of layer ``i``."""
        return self if len(self.vectors) == 1 else Memory(self.vectors[i : i + 1], self.lengths)

    def grid(self) -> tuple[Tensor, Tensor]:
        """Vectors of a single layer (B, M, D) and their padding mask (B, M), True where real."""
        (vectors,) = self.vectors
        return vectors, torch.arange(vectors.shape[1], device=vectors.device) < self.lengths[:, None]


class Given(TypedDict, total=False):
    """Optional arguments of a forward pass over N positions.

    segments (B, N): document numbers of packed rows; only positions of one document interact.
    prefix (B): length of each row's bidirectional prefix under a prefix mask; the prefix must be within one call.
    positions (B or 1, N): position of each vector; default: its index in the row.
    visible (B, N, N): keys visible to each query; combined with every mask by logical and.
    memory: encoder output. With a state, pass it to ``init_state`` instead.
    types (B or 1, N): token types, for front ends that have them; default 0.
    """

    segments: Tensor | None
    prefix: Tensor | None
    positions: Tensor | None
    visible: Tensor | None
    memory: Memory | None
    types: Tensor | None


@dataclass(frozen=True)
class Context:
    """Frozen context of a forward pass over (B, N, D).

    positions (B or 1, N): position of each vector in its row (for packed rows: in its document).
    lengths (B): number of real positions, the rest is right padding; None: no padding.
    segments, prefix, visible, memory, types: see ``Given``.
    past (B): positions processed before this call; None without a state.
    start: ``past`` as an integer if it is equal in all rows and nothing is padded, else None.
    end: max(past + lengths).
    memo: cache of ``once``.
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
        """This context with the memory of layer ``i``."""
        if self.memory is None or len(self.memory.vectors) == 1:
            return self
        return replace(self, memory=self.memory.of_layer(i))

    @property
    def valid(self) -> Tensor | None:
        """Padding mask (B, N), True where real; None without padding."""
        if self.lengths is None:
            return None
        return self.once("valid", lambda: torch.arange(self.positions.shape[1], device=self.positions.device) < self._lengths()[:, None])

    @property
    def document_starts(self) -> Tensor | None:
        """True at the first position of each document, (B, N); None if rows are not packed."""
        return None if self.segments is None else starts_of(self.segments)

    def _lengths(self) -> Tensor:
        assert self.lengths is not None
        return self.lengths

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, cached under ``key`` and shared by all layers."""
        if torch.compiler.is_compiling():  # the compiler merges equal subexpressions, and cannot hash a spec
            return compute()
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]
