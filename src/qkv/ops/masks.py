"""Masks as predicates of (batch, head, query, key); faster implementations are tested against them.

A predicate maps index tensors that broadcast to (B, H, N, M) to booleans; True: the key is visible. Masks are applied
by setting logits to -inf, not by multiplying weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """Index tensors that broadcast to (B, H, N, M), the arguments of a mask predicate.

    batch, head: indices; query, key: positions; prefix: prefix length of each row, 0 for none.
    """

    batch: Tensor
    head: Tensor
    query: Tensor
    key: Tensor
    prefix: Tensor | int = 0


class Span(NamedTuple):
    """Ranges of positions of a block of queries and a block of keys, with inclusive ends."""

    first_query: int
    last_query: int
    first_key: int
    last_key: int


class Mask:
    """Base class of mask predicates. ``may_see`` and ``sees_all`` are bounds for whole blocks, which save work."""

    def allowed(self, grid: Grid) -> Tensor:
        """Return booleans that broadcast to (B, H, N, M): True where the query sees the key."""
        raise NotImplementedError

    def may_see(self, span: Span) -> bool:
        """Return False only if no query in the span sees any key in it, so that the block can be skipped."""
        return True

    def sees_all(self, span: Span) -> bool:
        """Return True only if every query in the span sees every key in it, so that the block needs no mask."""
        return False

    def __and__(self, other: Mask) -> Mask:
        return AllOf((self, other))

    def __or__(self, other: Mask) -> Mask:
        return AnyOf((self, other))


@dataclass(frozen=True)
class Full(Mask):
    """Mask under which all keys are visible."""

    def allowed(self, grid: Grid) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=grid.query.device)

    def sees_all(self, span: Span) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Mask):
    """Mask under which keys at or before the query are visible."""

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key <= grid.query

    def may_see(self, span: Span) -> bool:
        return span.first_key <= span.last_query

    def sees_all(self, span: Span) -> bool:
        return span.last_key <= span.first_query


@dataclass(frozen=True)
class Window(Mask):
    """Mask under which keys less than ``size`` positions away and the first ``sinks`` keys are visible."""

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
    """Mask under which the first ``length`` keys are visible; None: the prefix length of each row.

    own: visible to the first ``length`` queries only.
    """

    length: int | None = None
    own: bool = False

    def allowed(self, grid: Grid) -> Tensor:
        length = grid.prefix if self.length is None else self.length
        return (grid.key < length) & (grid.query < length) if self.own else grid.key < length

    def may_see(self, span: Span) -> bool:
        return self.length is None or max(span.first_key, span.first_query if self.own else 0) < self.length

    def sees_all(self, span: Span) -> bool:
        return self.length is not None and max(span.last_key, span.last_query if self.own else 0) < self.length


@dataclass(frozen=True)
class Strided(Mask):
    """Mask under which keys at a distance that is a multiple of ``stride`` are visible."""

    stride: int

    def allowed(self, grid: Grid) -> Tensor:
        return (grid.query - grid.key) % self.stride == 0


@dataclass(frozen=True)
class Fixed(Mask):
    """Mask that shows the keys in the query's block of ``stride``, and the last ``summary`` keys of every block."""

    stride: int
    summary: int = 1

    def allowed(self, grid: Grid) -> Tensor:
        same_block = grid.query // self.stride == grid.key // self.stride
        return same_block | (grid.key % self.stride >= self.stride - self.summary)


@dataclass(frozen=True)
class Blocks(Mask):
    """Mask that shows the keys in the query's block of ``size``, in ``back`` blocks before and ``ahead`` after it."""

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
class Levels(Mask):
    """Mask under which keys on the query's level are visible (``see="within"``), or those on others and itself.

    Levels are those of rows into which windows of ``factors`` positions are inserted, each after its last position.
    """

    factors: tuple[int, ...]
    see: str = "within"

    def allowed(self, grid: Grid) -> Tensor:
        levels = torch.tensor(levels_of(self.factors), device=grid.query.device)
        query, key = (levels[places % len(levels)] for places in (grid.query, grid.key))
        return query == key if self.see == "within" else (query != key) | (grid.query == grid.key)


@lru_cache(maxsize=64)
def levels_of(factors: tuple[int, ...]) -> tuple[int, ...]:
    """Return the level, an index of ``factors``, of each position of a row until the largest window ends.

    Later positions repeat these.
    """
    ends = range(1, factors[-1] + 1)
    return tuple(level for end in ends for level, factor in enumerate(factors) if end % factor == 0)


@dataclass(frozen=True)
class Explicit(Mask):
    """Mask stored as booleans (B or 1, H or 1, positions, positions), such as the adjacency matrix of a graph."""

    table: Tensor

    def allowed(self, grid: Grid) -> Tensor:
        # the indices of the grid are not used: they have a single row if all rows have equal positions
        batch, head = (torch.arange(size, device=self.table.device) for size in self.table.shape[:2])
        return self.table[
            batch[:, None, None, None], head[:, None, None], grid.query.clamp(min=0), grid.key.clamp(min=0)
        ]


@dataclass(frozen=True)
class AllOf(Mask):
    """Mask under which keys visible under all of ``masks`` are visible (intersection)."""

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
    """Mask under which keys visible under any of ``masks`` are visible (union)."""

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
    """Positions of queries and keys.

    query (B or 1, N), key (B or 1, M): positions; a key at -1 is an empty slot and never visible. query_segment,
    key_segment: document numbers of packed rows; only keys of the query's document are visible. aligned: in every row,
    key positions are 0..M-1 and query positions are the last N of them. full: True if the caller guarantees that every
    key is visible to every query. prefix (B): prefix length of each row. given (B, N, M): visible keys, combined with
    the mask by logical and.
    """

    query: Tensor
    key: Tensor
    query_segment: Tensor | None = None
    key_segment: Tensor | None = None
    aligned: bool = False
    full: bool = False
    prefix: Tensor | None = None
    given: Tensor | None = None

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, which must depend on ``key`` and the sites only; ``SharedSites`` caches the result."""
        return compute()

    def grid(self, num_heads: int) -> Grid:
        """Build the index tensors of all (row, head, query, key), the arguments of mask predicates."""
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
        """Evaluate ``mask`` as booleans (B or 1, H or 1, N, M): True where the query sees the key."""
        grid = self.grid(num_heads)
        seen = mask.allowed(grid) & (grid.key >= 0)
        if self.query_segment is not None and self.key_segment is not None:
            seen = seen & (self.query_segment[:, None, :, None] == self.key_segment[:, None, None, :])
        if self.given is not None:
            seen = seen & self.given[:, None]
        return seen.expand(*torch.broadcast_shapes(seen.shape, (1, 1, self.query.shape[1], self.key.shape[1])))

    def span(self) -> Span:
        """Return the ranges of query and key positions, for ``aligned`` sites."""
        num_queries, num_keys = self.query.shape[1], self.key.shape[1]
        return Span(num_keys - num_queries, num_keys - 1, 0, num_keys - 1)

    def part(self, queries: slice, keys: slice) -> Sites:
        """Return the sites of a slice of the queries and a slice of the keys."""
        return Sites(
            self.query[:, queries],
            self.key[:, keys],
            None if self.query_segment is None else self.query_segment[:, queries],
            None if self.key_segment is None else self.key_segment[:, keys],
            prefix=self.prefix,
            given=None if self.given is None else self.given[:, queries, keys],
        )


@dataclass(frozen=True)
class SharedSites(Sites):
    """Sites shared by several layers: ``once`` caches its results for all of them."""

    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        if torch.compiler.is_compiling():  # the compiler merges equal subexpressions, and cannot hash a mask
            return compute()
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]
