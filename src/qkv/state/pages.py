"""Keys and values in pages that rows share: what texts have in common is held once, and rows are never moved.

    row 0 ── 0 ─ 1 ─ 2 ─ 3           a page: keys (H, S, Dk), then values (H, S, Dv), of S positions
             │   │
    row 1 ───┴───┴── 4               forked from row 0 within its third page, which it copied before it wrote there

Selecting, joining and forking rows copies lists of pages; a page is freed with the last row that has it. A row takes a
page when it needs one, so it never holds more than S - 1 empty positions, whatever other rows hold (Kwon et al. 2023).
Only a kernel that reads pages where they are makes them pay, see ``qkv.ops.native.pages``; for all else they are
gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.state.arrival import Arrival, Counts
from qkv.state.store import Dense, Store, View

PAGE = 32
"""Positions of a page."""


class PageSizes(NamedTuple):
    """Sizes of a page: heads, features of (a key, a value), positions."""

    heads: int
    widths: tuple[int, int]
    positions: int

    @property
    def keys(self) -> int:
        """Numbers in the keys of a page, after which its values begin."""
        return self.heads * self.positions * self.widths[0]

    @property
    def total(self) -> int:
        """Numbers in a page."""
        return self.heads * self.positions * sum(self.widths)

    def split(self, page: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (H, S, Dk) and values (H, S, Dv) of a page."""
        keys, values = page[: self.keys], page[self.keys :]
        return tuple(t.view(self.heads, self.positions, -1) for t in (keys, values))  # type: ignore[return-value]


def pages_for(length: int, positions: int) -> int:
    """Number of pages of ``positions`` positions that a row of ``length`` positions has."""
    return -(-length // positions)


def room_for(length: int) -> int:
    """Number of positions for which the pages of a row of ``length`` positions have room."""
    return pages_for(length, PAGE) * PAGE


class MemoryPage:
    """Memory of a page. holders: number of rows that have it."""

    __slots__ = ("__weakref__", "data", "holders")

    def __init__(self, data: Tensor):
        self.data, self.holders = data, 0


class _Row:
    """Pages of a row, in order. holders: number of places in stores that have the row."""

    __slots__ = ("holders", "pages")

    def __init__(self, pages: Sequence[MemoryPage] = ()):
        self.pages, self.holders = list(pages), 0
        for page in pages:
            page.holders += 1

    def release(self) -> None:
        """Give up the row in one place; without another its pages are freed, unless other rows have them."""
        self.holders -= 1
        if not self.holders:
            self.shorten(0)

    def shorten(self, count: int) -> None:
        """Give up all but the first ``count`` pages."""
        for page in self.pages[count:]:
            page.holders -= 1
        del self.pages[count:]


class Paged(Store):
    """Key/value cache in pages: position p is the (p mod S)-th of page p // S of its row."""

    def __init__(self, sizes: PageSizes, like: Tensor, rows: Sequence[_Row]):
        """Hold ``rows``. ``like``: tensor with the dtype and device of pages, without elements."""
        self._rows, self.sizes, self.like = list(rows), sizes, like
        for row in rows:
            row.holders += 1
        self._addresses: Tensor | None = None

    @classmethod
    def instead(cls, store: Dense) -> Paged:
        """Empty store with the rows and sizes of an empty dense one."""
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
        else:  # what has just been written is all there is
            keys, values = (t.narrow(2, 0, end).to(self.like.dtype) for t in (keys, values))
        return View(keys, values, positions, in_place=True)

    def room(self, arrival: Arrival) -> Tensor:
        """Addresses of the pages of each row (B, W), int64, for code that writes its new positions itself; 0 where a
        row has no further page.
        """
        for place, (past, after) in enumerate(zip(arrival.past, arrival.after, strict=True)):
            self._prepare(place, past, after)
        if self._addresses is None:
            most = max((len(row.pages) for row in self._rows), default=0)
            width = most + 8 - most % 8  # so that rows can take some more
            listed = [
                [*(page.data.data_ptr() for page in row.pages), *[0] * (width - len(row.pages))] for row in self._rows
            ]
            self._addresses = torch.tensor(listed, dtype=torch.long)
        return self._addresses

    def gathered(self, end: int) -> tuple[Tensor, Tensor]:
        """Copy of keys (B, H, end, Dk) and values (B, H, end, Dv); 0 where a row has no page."""
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
                for held, new in zip(page, (keys, values), strict=True):
                    held[:, first - i * size : last - i * size] = new[place, :, first - past : last - past]

    def _prepare(self, place: int, past: int, after: int) -> None:
        """Give a row pages of its own for the positions from ``past`` to ``after``."""
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
        """Let the ``i``-th page of a row, or the one after its last, be a new one."""
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
        own = {id(row): row for row in self._rows}
        rows = {known: _Row([pages[id(page)] for page in row.pages]) for known, row in own.items()}
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
        """All pages of each row but its last one, which may have room: these are written to no more."""
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
            kept = pages_for(length, self.sizes.positions)
            if kept < len(row.pages):
                if row.holders > 1:
                    row.release()
                    self._rows[place] = _Row(row.pages[:kept])
                    self._rows[place].holders = 1
                else:
                    row.shorten(kept)
                self._addresses = None
        return self


def shared_bytes(pages: Sequence[MemoryPage]) -> int:
    """Bytes of ``pages``, one for each row that has it, beyond those of each page once."""
    own = {id(page): page for page in pages}.values()
    return sum(page.data.nbytes for page in pages) - sum(page.data.nbytes for page in own)


def paged(stores: Iterable[Store]) -> Iterator[Paged]:
    """Iterate over the stores in pages."""
    return (store for store in stores if isinstance(store, Paged))
