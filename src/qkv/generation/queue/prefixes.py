"""Prefix cache: decoding states of texts that were read before, for texts with the same prefix (system prompts,
examples, chats).

    text ── longest cached prefix ── copy of its state ── the rest is read
      └─ read or generated completely ── a copy of its state is cached ── removed, least recently used first

A state that can drop positions (``rewindable``), such as that of attention, serves every text that shares a prefix with
the cached text: the copy is truncated to the shared prefix. Any other state, such as that of a GRU or of a window,
serves only texts that begin with the whole cached text. It is therefore also kept at two more kinds of positions: after
1, 2, 4 … chunks of a long text, and where a text diverges from one that was read recently. From the third text on, the
prefix that all share is then not read again.

Models whose state depends on more than the earlier tokens, with an encoder or a prefix mask, have no prefix cache.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from qkv.models.state import State
from qkv.models.transformer import Transformer
from qkv.state.pages import paged
from qkv.state.tree import nbytes, one_row, stores

FEWEST = 16
"""Minimum number of tokens of a shared prefix; reading a shorter one again takes no longer than copying its state."""
COUNTS = 64
"""Upper bound of the bytes that a state needs for the position counts of one row."""
_RECENT = 64
"""Number of latest texts whose tokens are stored, to find where later texts diverge from them."""


@dataclass(eq=False)
class KeptPrefix:
    """Cached state of one row after ``tokens``. pages: ``id`` of each page -> bytes. apart: bytes outside of pages."""

    tokens: list[int]
    state: State
    pages: dict[int, int]
    apart: int


class SharedPrefix(NamedTuple):
    """Prefix of a text that need not be read again: the first ``length`` tokens of ``kept``."""

    kept: KeptPrefix
    length: int


class Prefixes:
    """Prefix cache of at most ``most`` bytes."""

    def __init__(self, model: Transformer, most: int, pages: bool = False):
        """Create an empty cache. ``most``: maximum bytes of all states; 0 keeps none. ``pages``: states hold pages."""
        self.model, self.most, self.pages = model, most, pages
        self._limit = most
        self.lent: set[int] | None = None
        """``id`` of each page that running texts hold until they end. Its bytes count as memory of the running texts,
        not of the cache (``most``). None: all pages count for ``most``.
        """
        self.hits = self.tokens = 0
        """Number of texts that started from a cached state, and number of their tokens that were not read again."""
        self.nbytes = 0
        """Bytes of all cached states, updated when one is added or removed; a page that several share counts once."""
        self._kept: list[KeptPrefix] = []
        """Cached states, least recently used first."""
        self._pages: dict[int, int] = {}
        """``id`` of each page of the cached states -> bytes."""
        self._holders: Counter[int] = Counter()
        """``id`` of each page -> number of cached states that hold it."""
        self._texts: deque[list[int]] = deque(maxlen=_RECENT)

    @property
    def own_bytes(self) -> int:
        """Bytes of all cached states without the pages of running texts (``lent``)."""
        return self.nbytes - self._lent_bytes(self._pages)

    def _add(self, tokens: list[int], state: State) -> KeptPrefix:
        """Add a state, as the most recently used."""
        pages = _bytes_of_pages([state])
        new = KeptPrefix(tokens, state, pages, nbytes(state) - sum(pages.values()))
        self._kept.append(new)
        self.nbytes += new.apart + sum(size for page, size in pages.items() if page not in self._pages)
        self._pages |= pages
        self._holders.update(pages.keys())
        return new

    def _remove(self, prefix: KeptPrefix) -> None:
        """Remove a state from the cache."""
        self._kept.remove(prefix)
        self._holders.subtract(prefix.pages.keys())
        free = [page for page in prefix.pages if not self._holders[page]]
        self.nbytes -= prefix.apart + sum(self._pages.pop(page) for page in free)
        for page in free:
            del self._holders[page]

    def _lent_bytes(self, pages: dict[int, int]) -> int:
        """Return the bytes of the pages of running texts (``lent``) among ``pages``."""
        return sum(pages[page] for page in pages.keys() & (self.lent or set()))

    @property
    def states(self) -> list[State]:
        """All cached states."""
        return [prefix.state for prefix in self._kept]

    def find(self, tokens: Sequence[int]) -> SharedPrefix | None:
        """Return the longest cached prefix of a text; None if it has fewer than ``FEWEST`` tokens.

        The prefix never includes the last token of the text, which must be read to predict the next one.
        """
        best = None
        for prefix in reversed(self._kept):  # of equal lengths the latest, so that the others are removed first
            length = min(common(tokens, prefix.tokens), len(tokens) - 1)
            if not self.model.rewindable and length < len(prefix.tokens):
                continue
            if length >= FEWEST and (best is None or length > best.length):
                best = SharedPrefix(prefix, length)
        return best

    def take(self, shared: SharedPrefix) -> State:
        """Copy the state of a shared prefix (one row), and count a cache hit."""
        prefix, length = shared
        self._use(prefix)
        self.hits += 1
        self.tokens += length
        state = one_row(prefix.state, 0, self._room(length))
        return state if length == len(prefix.tokens) else self.model.rewind(state, torch.tensor([length]))

    def hold(self, tokens: Sequence[int]) -> int:
        """Return the bytes of the cached state from which a text can start, without the pages of running texts; mark
        that state as the most recently used.

        Return 0 if there is none, or if the text shares less than half of the state's tokens.
        """
        shared = self.find(tokens)
        if shared is None or 2 * shared.length < len(shared.kept.tokens):
            return 0
        self._use(shared.kept)
        prefix = shared.kept
        return prefix.apart + sum(prefix.pages.values()) - self._lent_bytes(prefix.pages)

    def _use(self, prefix: KeptPrefix) -> None:
        """Mark a state as the most recently used."""
        self._kept.remove(prefix)
        self._kept.append(prefix)

    def parting(self, tokens: Sequence[int], read: int) -> int | None:
        """Return the number of tokens after which a text diverges from one that was read recently, at least ``FEWEST``
        more than ``read``; None if the state at this position need not be cached.
        """
        if self.model.rewindable or not self.most:
            return None
        length = max((common(tokens, text) for text in self._texts), default=0)
        length = min(length, len(tokens) - 1)
        return length if length >= read + FEWEST else None

    def saw(self, tokens: Sequence[int]) -> None:
        """Store the tokens of a text that was read, so that ``parting`` can compare later texts with it."""
        self._texts.append(list(tokens))

    def keep(self, tokens: Sequence[int], state: State, row: int) -> None:
        """Cache a copy of the state of ``row`` after ``tokens``, unless a cached state serves the same texts or the
        copy exceeds ``most``.
        """
        if len(tokens) < FEWEST or self.most <= 0:
            return
        for prefix in self._kept:
            if self._serves(prefix.tokens, tokens):
                self._use(prefix)
                return
        if self.model.rewindable:  # states after prefixes of ``tokens`` are part of the new state
            for prefix in [prefix for prefix in self._kept if self._serves(tokens, prefix.tokens)]:
                self._remove(prefix)
        if self.has_room(len(tokens)):
            self.shrink(self.most - self._needed(len(tokens)))
            new = self._add(list(tokens), one_row(state, row, self._room(len(tokens))))
            if self.lent is not None:
                self.lent |= {id(page) for store in paged(stores(new.state)) for page in store.full}

    def has_room(self, length: int) -> bool:
        """Return whether a state after ``length`` tokens can be cached, if necessary after removal of other states."""
        whole = self.model.room_bytes(length, 1, self.pages) + COUNTS + self.page_bytes(length)
        return self._needed(length) <= self.most and whole <= self._limit

    def _needed(self, length: int) -> int:
        """Return the bytes of a state after ``length`` tokens that count towards ``most``."""
        # With ``lent``, all pages but the last, which the running text still writes to, count for the running text.
        pages = self.page_bytes(length if self.lent is None else 1)
        return self.model.room_bytes(length, 1, self.pages) + COUNTS + pages

    def shrink(self, most: int) -> None:
        """Remove the least recently used states until the others have at most ``most`` bytes in total, not counting the
        pages of running texts.
        """
        while self._kept and self.nbytes > most and self.own_bytes > most:
            self._remove(self._kept[0])

    def page_bytes(self, length: int) -> int:
        """Return the bytes of the pages of a state after ``length`` tokens; 0 if states have no pages."""
        return self.model.page_bytes(length) if self.pages else 0

    def _serves(self, text: Sequence[int], tokens: Sequence[int]) -> bool:
        """Return whether texts that can start from the state after ``tokens`` can start from that after ``text``."""
        same = len(text) == len(tokens) or (self.model.rewindable and len(text) > len(tokens))
        return same and common(text, tokens) == len(tokens)

    def _room(self, length: int) -> int | None:
        """Return the number of positions that the buffers of a copy must have; None for a model with segmentation,
        whose buffers are not indexed by position.
        """
        return length if self.model.segmentation is None else None


def _bytes_of_pages(states: Sequence[State]) -> dict[int, int]:
    """Map the ``id`` of each page of the states to its bytes."""
    pages = (page for state in states for store in paged(stores(state)) for page in store.pages())
    return {id(page): page.data.nbytes for page in pages}


def shares(model: Transformer) -> bool:
    """Return whether the state of a text depends on its tokens alone, so that texts can share states."""
    return model.encoder is None and not model.reads_prefix


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts, found by bisection: comparisons of list slices are fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
