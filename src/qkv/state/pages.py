"""Paged KV cache: rows share pages, so that a common prefix is stored once, and rows are never moved in memory.

    row 0 ── 0 ─ 1 ─ 2 ─ 3           a page: keys (H, S, Dk), then values (H, S, Dv), of S positions
             │   │
    row 1 ───┴───┴── 4               forked from row 0 within its third page, which is copied on write

Selecting, joining and forking rows copies lists of pages, not pages; a page is freed with the last row that uses it. A
row takes a page when it needs one, so that it never holds more than S - 1 empty positions, independent of other rows
(Kwon et al. 2023). Pages are worthwhile only with a kernel that reads them in place (``qkv.ops.native.pages``); other
code gathers keys and values into dense tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.state.arrival import Arrival, Counts
from qkv.state.store import Dense, Store, View

PAGE = 32
"""Number of positions of a page, S."""


class PageSizes(NamedTuple):
    """Sizes of a page: heads, features of (a key, a value), positions."""

    heads: int
    widths: tuple[int, int]
    positions: int

    @property
    def keys(self) -> int:
        """Number of elements that the keys of a page take; the values follow them."""
        return self.heads * self.positions * self.widths[0]

    @property
    def total(self) -> int:
        """Number of elements of a page."""
        return self.heads * self.positions * sum(self.widths)

    def split(self, page: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of the keys (H, S, Dk) and values (H, S, Dv) of a page."""
        keys, values = page[: self.keys], page[self.keys :]
        return tuple(t.view(self.heads, self.positions, -1) for t in (keys, values))  # type: ignore[return-value]


def pages_for(length: int, positions: int) -> int:
    """Return the number of pages that a row of ``length`` positions needs, with ``positions`` positions per page."""
    return -(-length // positions)


def room_for(length: int) -> int:
    """Round ``length`` up to whole pages: the number of positions for which a row of this length has memory."""
    return pages_for(length, PAGE) * PAGE


class MemoryPage:
    """Memory of a page. holders: number of rows that use the page (reference count)."""

    __slots__ = ("__weakref__", "data", "holders")

    def __init__(self, data: Tensor):
        self.data, self.holders = data, 0


class _Row:
    """Pages of a row, in order. holders: number of rows of stores that refer to this object (reference count)."""

    __slots__ = ("holders", "pages")

    def __init__(self, pages: Sequence[MemoryPage] = ()):
        self.pages, self.holders = list(pages), 0
        for page in pages:
            page.holders += 1

    def release(self) -> None:
        """Remove one reference to the row; when none is left, release its pages."""
        self.holders -= 1
        if not self.holders:
            self.shorten(0)

    def shorten(self, count: int) -> None:
        """Release all pages after the first ``count``."""
        for page in self.pages[count:]:
            page.holders -= 1
        del self.pages[count:]


class Paged(Store):
    """Key/value cache in pages: position p of a row is at index p mod S of the row's page p // S."""

    def __init__(self, sizes: PageSizes, like: Tensor, rows: Sequence[_Row]):
        """Create a store of ``rows``. ``like``: empty tensor with the dtype and device of the pages."""
        self._rows, self.sizes, self.like = list(rows), sizes, like
        for row in rows:
            row.holders += 1
        self._addresses: Tensor | None = None

    @classmethod
    def instead(cls, store: Dense) -> Paged:
        """Create an empty paged store with the rows, heads and features of ``store``, an empty dense store."""
        (rows, heads, _, width), value_width = store.keys.shape, store.values.shape[3]
        sizes = PageSizes(heads, (width, value_width), PAGE)
        return cls(sizes, store.keys.new_empty(0), [_Row() for _ in range(rows)])

    def __del__(self) -> None:
        for row in self._rows:
            row.release()

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        self._write(keys, values, arrival)
        end = arrival.end
        positions = arrival.once(("slots", end), lambda: torch.arange(end, device=keys.device)[None])
        if any(arrival.past):
            keys, values = self.gathered(end)
        else:  # nothing was stored before this call
            keys, values = (t.narrow(2, 0, end).to(self.like.dtype) for t in (keys, values))
        return View(keys, values, positions, in_place=True)

    def room(self, arrival: Arrival) -> Tensor:
        """Allocate pages for new positions; return the addresses of each row's pages (B, W), int64, 0 after the last.

        For kernels that write the new keys and values to the pages themselves.
        """
        for place, (past, after) in enumerate(zip(arrival.past, arrival.after, strict=True)):
            self._prepare(place, past, after)
        if self._addresses is None:
            most = max((len(row.pages) for row in self._rows), default=0)
            width = most + 8 - most % 8  # spare columns for further pages
            listed = [
                [*(page.data.data_ptr() for page in row.pages), *[0] * (width - len(row.pages))] for row in self._rows
            ]
            self._addresses = torch.tensor(listed, dtype=torch.long)
        return self._addresses

    def gathered(self, end: int) -> tuple[Tensor, Tensor]:
        """Copy keys (B, H, end, Dk) and values (B, H, end, Dv) to dense tensors; 0 where a row has no page."""
        size, count = self.sizes.positions, pages_for(end, self.sizes.positions)
        shape = len(self._rows), self.sizes.heads, count * size
        whole = [self.like.new_zeros(*shape, width) for width in self.sizes.widths]
        to, pages = list[Tensor](), list[Tensor]()
        for place, row in enumerate(self._rows):
            for i, page in enumerate(row.pages[:count]):
                to += [t[place, :, i * size : (i + 1) * size] for t in whole]
                pages += self.sizes.split(page.data)
        if to:
            torch._foreach_copy_(to, pages)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return whole[0].narrow(2, 0, end), whole[1].narrow(2, 0, end)

    def _write(self, keys: Tensor, values: Tensor, arrival: Arrival) -> None:
        """Write keys and values (B, H, N, …) except padding."""
        size = self.sizes.positions
        for place, (past, after) in enumerate(zip(arrival.past, arrival.after, strict=True)):
            self._prepare(place, past, after)
            for i in range(past // size, pages_for(after, size)):
                first, last = max(past, i * size), min(after, (i + 1) * size)
                page = self.sizes.split(self._rows[place].pages[i].data)
                for old, new in zip(page, (keys, values), strict=True):
                    old[:, first - i * size : last - i * size] = new[place, :, first - past : last - past]

    def _prepare(self, place: int, past: int, after: int) -> None:
        """Ensure that a row has unshared pages for the positions from ``past`` to ``after``; copy shared pages."""
        if past == after:
            return
        row, first, count = self._rows[place], past // self.sizes.positions, pages_for(after, self.sizes.positions)
        if row.holders > 1:
            row.release()
            self._rows[place] = row = _Row(row.pages)
            row.holders = 1
        for i in range(first, len(row.pages)):
            page = row.pages[i]
            if page.holders > 1:
                self._put(place, i, page.data.clone())
                page.holders -= 1
        for i in range(len(row.pages), count):
            self._put(place, i, self.like.new_zeros(self.sizes.total))

    def _put(self, place: int, i: int, data: Tensor) -> None:
        """Replace the ``i``-th page of a row by a new page with ``data``, or append it after the last page."""
        page = MemoryPage(data)
        page.holders = 1
        self._rows[place].pages[i : i + 1] = [page]
        if self._addresses is not None and i < self._addresses.shape[1]:
            self._addresses[place, i] = data.data_ptr()
        else:
            self._addresses = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Paged:
        like = change(self.like)
        pages = {id(page): MemoryPage(change(page.data)) for page in self.pages()}
        by_id = {id(row): row for row in self._rows}
        rows = {place: _Row([pages[id(page)] for page in row.pages]) for place, row in by_id.items()}
        return Paged(self.sizes, like, [rows[id(row)] for row in self._rows])

    def tensors(self) -> Iterator[Tensor]:
        yield self.like
        for page in self.pages():
            yield page.data

    def pages(self) -> Iterator[MemoryPage]:
        """Iterate over the pages of all rows, each once."""
        yield from {id(page): page for row in self._rows for page in row.pages}.values()

    @property
    def full(self) -> list[MemoryPage]:
        """Full pages, which are never written to again: all pages of each row except its last."""
        return [page for row in self._rows for page in row.pages[:-1]]

    def rows(self, index: Tensor) -> Paged:
        return Paged(self.sizes, self.like, [self._rows[row] for row in Counts.of(index)])

    def one_row(self, row: int, length: int | None = None) -> Paged:
        return Paged(self.sizes, self.like, [self._rows[row]])

    def overwrite(self, to: Sequence[int], source: Sequence[int]) -> Paged:
        for a, b in zip(to, source, strict=True):
            self._rows[b].holders += 1
            self._rows[a].release()
            self._rows[a] = self._rows[b]
        self._addresses = None
        return self

    def join(self, other: Any) -> Paged:
        return Paged(self.sizes, self.like, [*self._rows, *other._rows])

    def cut(self, lengths: Counts) -> Paged:
        for place, (row, length) in enumerate(zip(self._rows, lengths, strict=True)):
            count = pages_for(length, self.sizes.positions)
            if count < len(row.pages):
                if row.holders > 1:
                    row.release()
                    self._rows[place] = _Row(row.pages[:count])
                    self._rows[place].holders = 1
                else:
                    row.shorten(count)
                self._addresses = None
        return self


def shared_bytes(pages: Sequence[MemoryPage]) -> int:
    """Return the number of bytes that sharing of pages saves; ``pages`` lists a page once per row that uses it."""
    pages_by_id = {id(page): page for page in pages}.values()
    return sum(page.data.nbytes for page in pages) - sum(page.data.nbytes for page in pages_by_id)


def paged(stores: Iterable[Store]) -> Iterator[Paged]:
    """Iterate over the paged stores among ``stores``."""
    return (store for store in stores if isinstance(store, Paged))
