"""Masks as predicates of (batch, head, query, key): the truth that every fast path is checked against.

A predicate reads index tensors that broadcast to (B, H, N, M) and answers with booleans; True means the key is visible.
It is applied by adding -inf to the logits (never by multiplying weights).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """Index tensors that broadcast to (B, H, N, M): row, head, position of the query, position of the key.

    prefix: how many first positions of each row are its prefix; 0 where rows have none.
    """

    batch: Tensor
    head: Tensor
    query: Tensor
    key: Tensor
    prefix: Tensor | int = 0


@dataclass(frozen=True)
class Span:
    """Two closed ranges of positions: what a block of queries and a block of keys may hold."""

    first_query: int
    last_query: int
    first_key: int
    last_key: int


class Mask:
    """A predicate, with two quick answers about whole blocks that let a fast path skip work."""

    def allowed(self, grid: Grid) -> Tensor:
        """Booleans that broadcast to (B, H, N, M)."""
        raise NotImplementedError

    def may_see(self, span: Span) -> bool:
        """False only if no query of the span sees any key of it."""
        return True

    def sees_all(self, span: Span) -> bool:
        """True only if every query of the span sees every key of it."""
        return False

    def __and__(self, other: Mask) -> Mask:
        return AllOf((self, other))

    def __or__(self, other: Mask) -> Mask:
        return AnyOf((self, other))


@dataclass(frozen=True)
class Full(Mask):
    """Every key."""

    def allowed(self, grid: Grid) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=grid.query.device)

    def sees_all(self, span: Span) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Mask):
    """Keys at or before the query."""

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key <= grid.query

    def may_see(self, span: Span) -> bool:
        return span.first_key <= span.last_query

    def sees_all(self, span: Span) -> bool:
        return span.last_key <= span.first_query


@dataclass(frozen=True)
class Window(Mask):
    """Keys less than ``size`` away, and the first ``sinks``."""

    size: int
    sinks: int = 0

    def allowed(self, grid: Grid) -> Tensor:
        distance = grid.query - grid.key
        return ((distance < self.size) & (distance > -self.size)) | (grid.key < self.sinks)

    def may_see(self, span: Span) -> bool:
        near = span.last_key > span.first_query - self.size and span.first_key < span.last_query + self.size
        return near or span.first_key < self.sinks

    def sees_all(self, span: Span) -> bool:
        near = span.first_key > span.last_query - self.size and span.last_key < span.first_query + self.size
        return near or span.last_key < self.sinks


@dataclass(frozen=True)
class Prefix(Mask):
    """The first ``length`` keys; with None those of the row's own prefix."""

    length: int | None = None

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key < (grid.prefix if self.length is None else self.length)

    def may_see(self, span: Span) -> bool:
        return self.length is None or span.first_key < self.length

    def sees_all(self, span: Span) -> bool:
        return self.length is not None and span.last_key < self.length


@dataclass(frozen=True)
class Strided(Mask):
    """Keys at a distance that is a multiple of ``stride``."""

    stride: int

    def allowed(self, grid: Grid) -> Tensor:
        return (grid.query - grid.key) % self.stride == 0


@dataclass(frozen=True)
class Fixed(Mask):
    """Keys of the query's own block of ``stride``, and the last ``summary`` of every block."""

    stride: int
    summary: int = 1

    def allowed(self, grid: Grid) -> Tensor:
        same_block = grid.query // self.stride == grid.key // self.stride
        return same_block | (grid.key % self.stride >= self.stride - self.summary)


@dataclass(frozen=True)
class Blocks(Mask):
    """Keys of the query's own block of ``size``, of ``back`` blocks before and ``ahead`` blocks after it."""

    size: int
    back: int = 0
    ahead: int = 0

    def allowed(self, grid: Grid) -> Tensor:
        blocks_back = grid.query // self.size - grid.key // self.size
        return (blocks_back <= self.back) & (blocks_back >= -self.ahead)

    def may_see(self, span: Span) -> bool:
        first, last = span.first_query // self.size - self.back, span.last_query // self.size + self.ahead
        return span.last_key // self.size >= first and span.first_key // self.size <= last


@dataclass(frozen=True)
class Explicit(Mask):
    """A given boolean tensor (B or 1, H or 1, positions, positions): adjacency of a graph, or anything else."""

    table: Tensor

    def allowed(self, grid: Grid) -> Tensor:
        # Counted here and not taken from the grid, whose rows are one where all stand at the same positions.
        batch, head = (torch.arange(size, device=self.table.device) for size in self.table.shape[:2])
        return self.table[batch[:, None, None, None], head[:, None, None], grid.query.clamp(min=0), grid.key.clamp(min=0)]


@dataclass(frozen=True)
class AllOf(Mask):
    """Keys that every one of ``masks`` shows."""

    masks: tuple[Mask, ...]

    def allowed(self, grid: Grid) -> Tensor:
        first, *rest = (mask.allowed(grid) for mask in self.masks)
        for other in rest:
            first = first & other
        return first

    def may_see(self, span: Span) -> bool:
        return all(mask.may_see(span) for mask in self.masks)

    def sees_all(self, span: Span) -> bool:
        return all(mask.sees_all(span) for mask in self.masks)


@dataclass(frozen=True)
class AnyOf(Mask):
    """Keys that any of ``masks`` shows."""

    masks: tuple[Mask, ...]

    def allowed(self, grid: Grid) -> Tensor:
        first, *rest = (mask.allowed(grid) for mask in self.masks)
        for other in rest:
            first = first | other
        return first

    def may_see(self, span: Span) -> bool:
        return any(mask.may_see(span) for mask in self.masks)

    def sees_all(self, span: Span) -> bool:
        return any(mask.sees_all(span) for mask in self.masks)


@dataclass(frozen=True)
class Sites:
    """Where queries and keys stand.

    query (B or 1, N), key (B or 1, M): positions; a key at -1 is an empty slot and is never visible.
    query_segment, key_segment: document numbers of packed rows; only keys of the query's own document are visible.
    aligned: keys are 0..M-1 without gaps and queries the last N of them, in every row.
    full: every key is visible to every query; whoever says so has looked.
    prefix (B): how many first positions of each row are its prefix.
    given (B, N, M): booleans that the mask's answer is joined with by and.
    """

    query: Tensor
    key: Tensor
    query_segment: Tensor | None = None
    key_segment: Tensor | None = None
    aligned: bool = False
    full: bool = False
    prefix: Tensor | None = None
    given: Tensor | None = None

    def grid(self, num_heads: int) -> Grid:
        """The index tensors that a predicate reads."""
        device = self.query.device
        rows = max(self.query.shape[0], self.key.shape[0])
        return Grid(
            batch=torch.arange(rows, device=device)[:, None, None, None],
            head=torch.arange(num_heads, device=device)[None, :, None, None],
            query=self.query[:, None, :, None],
            key=self.key[:, None, None, :],
            prefix=0 if self.prefix is None else self.prefix[:, None, None, None],
        )

    def visible(self, mask: Mask, num_heads: int) -> Tensor:
        """The dense form of ``mask`` here: booleans (B or 1, H or 1, N, M)."""
        grid = self.grid(num_heads)
        seen = mask.allowed(grid) & (grid.key >= 0)
        if self.query_segment is not None and self.key_segment is not None:
            seen = seen & (self.query_segment[:, None, :, None] == self.key_segment[:, None, None, :])
        if self.given is not None:
            seen = seen & self.given[:, None]
        return seen.expand(*torch.broadcast_shapes(seen.shape, (1, 1, self.query.shape[1], self.key.shape[1])))

    def span(self) -> Span:
        """The range of positions, for sites whose rows are all alike (``aligned``)."""
        num_queries, num_keys = self.query.shape[1], self.key.shape[1]
        return Span(num_keys - num_queries, num_keys - 1, 0, num_keys - 1)

    def part(self, queries: slice, keys: slice) -> Sites:
        """The sites of some of the queries and keys."""
        return Sites(
            self.query[:, queries],
            self.key[:, keys],
            None if self.query_segment is None else self.query_segment[:, queries],
            None if self.key_segment is None else self.key_segment[:, keys],
            prefix=self.prefix,
            given=None if self.given is None else self.given[:, queries, keys],
        )
