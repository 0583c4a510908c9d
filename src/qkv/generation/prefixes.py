"""States of texts that were read before, for texts that begin in the same way: system prompts, examples, chats.

    text ── longest known beginning ── copy of its state ── the rest is read
      └─ read to its end, or written to its end ── a copy of its state is kept ── removed, least recently used first

A state that can drop positions (``rewindable``), such as that of attention, serves every text that shares a beginning
with its own: the copy is cut to it. Any other state, such as that of a GRU or of a window, serves only texts that begin
with the whole of its own. It is therefore also kept where a long text is cut into chunks, after 1, 2, 4 … of them, and
where a text parts from one that was read lately: from the third text on, what all share is not read again.

Not for models whose state depends on more than the tokens before it: with an encoder, or with a prefix.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from qkv.models.transformer import State, Transformer
from qkv.state.pages import paged
from qkv.state.tree import nbytes, one_row, stores

FEWEST = 16
"""Tokens of a shared beginning below which it is read again: a copy takes as long."""
COUNTS = 64
"""Bytes of a row's counts at most."""
_RECENT = 64
"""Texts whose tokens are remembered, to find where others part from them."""


@dataclass(eq=False)
class KeptPrefix:
    """State of one row after ``tokens``. pages: bytes of its pages by identity. apart: its bytes outside of pages."""

    tokens: list[int]
    state: State
    pages: dict[int, int]
    apart: int


class SharedPrefix(NamedTuple):
    """Beginning of a text that need not be read: the first ``length`` tokens of ``kept``."""

    kept: KeptPrefix
    length: int


class Prefixes:
    """States of beginnings of texts, within ``most`` bytes."""

    def __init__(self, model: Transformer, most: int, pages: bool = False):
        """Keep nothing yet. ``most``: bytes of all states; 0 keeps none. ``pages``: the states hold pages."""
        self.model, self.most, self.pages = model, most, pages
        self._limit = most
        self.lent: set[int] | None = None
        """Identities of pages that running texts have until they end, whose bytes are counted there; ``most`` is for
        the others. None: all pages are counted here.
        """
        self.hits = self.tokens = 0
        """Texts that began with a kept state, and their tokens that were not read again."""
        self.nbytes = 0
        """Bytes of all kept states, counted as they come and go; pages that several share are counted once."""
        self._kept: list[KeptPrefix] = []
        """Least recently used first."""
        self._pages: dict[int, int] = {}
        """Bytes of the pages of all kept states by identity."""
        self._holders: Counter[int] = Counter()
        """Number of kept states that have a page."""
        self._texts: deque[list[int]] = deque(maxlen=_RECENT)

    @property
    def own_bytes(self) -> int:
        """Bytes of all kept states without pages that running texts have."""
        return self.nbytes - self._lent_bytes(self._pages)

    def _add(self, tokens: list[int], state: State) -> KeptPrefix:
        """Keep a state, as the most recently used one."""
        pages = _bytes_of_pages([state])
        new = KeptPrefix(tokens, state, pages, nbytes(state) - sum(pages.values()))
        self._kept.append(new)
        self.nbytes += new.apart + sum(size for page, size in pages.items() if page not in self._pages)
        self._pages |= pages
        self._holders.update(pages.keys())
        return new

    def _remove(self, kept: KeptPrefix) -> None:
        """Keep a state no more."""
        self._kept.remove(kept)
        self._holders.subtract(kept.pages.keys())
        free = [page for page in kept.pages if not self._holders[page]]
        self.nbytes -= kept.apart + sum(self._pages.pop(page) for page in free)
        for page in free:
            del self._holders[page]

    def _lent_bytes(self, pages: dict[int, int]) -> int:
        """Bytes of those of ``pages``, by identity, that running texts have."""
        return sum(pages[page] for page in pages.keys() & (self.lent or set()))

    @property
    def states(self) -> list[State]:
        """All kept states."""
        return [kept.state for kept in self._kept]

    def find(self, tokens: Sequence[int]) -> SharedPrefix | None:
        """Longest beginning of a text whose state is kept, without its last token, which must be read; None if it is
        too short.
        """
        best = None
        for kept in reversed(self._kept):  # of equal ones the latest, so that the others are removed first
            length = min(common(tokens, kept.tokens), len(tokens) - 1)
            if not self.model.rewindable and length < len(kept.tokens):
                continue
            if length >= FEWEST and (best is None or length > best.length):
                best = SharedPrefix(kept, length)
        return best

    def take(self, shared: SharedPrefix) -> State:
        """Copy of the state of a shared beginning, one row."""
        kept, length = shared
        self._use(kept)
        self.hits += 1
        self.tokens += length
        state = one_row(kept.state, 0, self._room(length))
        return state if length == len(kept.tokens) else self.model.rewind(state, torch.tensor([length]))

    def hold(self, tokens: Sequence[int]) -> int:
        """Bytes of the state with which a text begins, without pages that running texts have; it is now removed last.

        0 if none is kept, or if the text shares less than half of it.
        """
        shared = self.find(tokens)
        if shared is None or 2 * shared.length < len(shared.kept.tokens):
            return 0
        self._use(shared.kept)
        kept = shared.kept
        return kept.apart + sum(kept.pages.values()) - self._lent_bytes(kept.pages)

    def _use(self, kept: KeptPrefix) -> None:
        """Let a state be the most recently used one."""
        self._kept.remove(kept)
        self._kept.append(kept)

    def parting(self, tokens: Sequence[int], read: int) -> int | None:
        """Number of tokens, more than ``read``, after which a text parts from one that was read lately; None if the
        state there need not be kept.
        """
        if self.model.rewindable or not self.most:
            return None
        found = max((common(tokens, text) for text in self._texts), default=0)
        found = min(found, len(tokens) - 1)
        return found if found >= read + FEWEST else None

    def saw(self, tokens: Sequence[int]) -> None:
        """Remember the tokens of a text that is read."""
        self._texts.append(list(tokens))

    def keep(self, tokens: Sequence[int], state: State, row: int) -> None:
        """Keep a copy of the state of ``row`` after ``tokens``, unless it is known or exceeds ``most``."""
        if len(tokens) < FEWEST or self.most <= 0:
            return
        for kept in self._kept:
            if self._serves(kept.tokens, tokens):
                self._use(kept)
                return
        if self.model.rewindable:  # its beginnings are part of the new state
            for kept in [kept for kept in self._kept if self._serves(tokens, kept.tokens)]:
                self._remove(kept)
        if self.has_room(len(tokens)):
            self.shrink(self.most - self._needed(len(tokens)))
            new = self._add(list(tokens), one_row(state, row, self._room(len(tokens))))
            if self.lent is not None:
                self.lent |= {id(page) for store in paged(stores(new.state)) for page in store.full}

    def has_room(self, length: int) -> bool:
        """True if a state after ``length`` tokens can be kept, once others are removed."""
        whole = self.model.room_bytes(length, 1, self.pages) + COUNTS + self.page_bytes(length)
        return self._needed(length) <= self.most and whole <= self._limit

    def _needed(self, length: int) -> int:
        """Bytes of ``most`` that a state after ``length`` tokens takes."""
        # All pages of a running text but the last one, which it writes to, are counted there.
        pages = self.page_bytes(length if self.lent is None else 1)
        return self.model.room_bytes(length, 1, self.pages) + COUNTS + pages

    def shrink(self, most: int) -> None:
        """Remove the least recently used states until all others together have at most ``most`` bytes, without pages
        that running texts have.
        """
        while self._kept and self.nbytes > most and self.own_bytes > most:
            self._remove(self._kept[0])

    def page_bytes(self, length: int) -> int:
        """Bytes of the pages of a state after ``length`` tokens."""
        return self.model.page_bytes(length) if self.pages else 0

    def _serves(self, known: Sequence[int], tokens: Sequence[int]) -> bool:
        """True if the state after ``known`` serves all texts that one after ``tokens`` serves."""
        same = len(known) == len(tokens) or (self.model.rewindable and len(known) > len(tokens))
        return same and common(known, tokens) == len(tokens)

    def _room(self, length: int) -> int | None:
        """Number of positions for which stores of a copy need room; None: they hold something else than positions."""
        return length if self.model.segmentation is None else None


def _bytes_of_pages(states: Sequence[State]) -> dict[int, int]:
    """Bytes of the pages of states by identity."""
    pages = (page for state in states for store in paged(stores(state)) for page in store.pages())
    return {id(page): page.data.nbytes for page in pages}


def shares(model: Transformer) -> bool:
    """True if the state of a text is a function of its tokens alone."""
    return model.encoder is None and not model.reads_prefix


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of first tokens in which both agree: by bisection, whose comparisons are those of whole lists."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
