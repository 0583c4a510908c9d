"""Decoding engine: the one loop of sampling, beam search and scoring.

    admit ── rows ── read ── policy ─┬─ no successor: the row is evicted
               │                     ├─ one successor: its tokens are appended
               └─────────────────────┴─ several: the row is forked

``read`` is one forward pass over the tokens of each row that its state lacks: a whole prompt, or the token of the last
step. Rows that begin, because they were just admitted or because their context slides, are read in a pass of their own
and join the others; so rows can be admitted while others decode.

``cut`` shortens texts and takes back what was read of them, for tokens that were only proposed. A state whose branches
cannot drop positions, such as that of a GRU, returns to the copy made by ``mark``, and the tokens kept since then are
read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.padding import batch_of
from qkv.generation.context import first_seen
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.transformer import State, Transformer
from qkv.state.tree import join, map_tensors, nbytes, overwrite, rows


@dataclass
class DecodedRow:
    """Text that is being decoded, a row of the batch.

    key: number by which the policy knows it.   tokens: ids of the text, prompt included.   prompt: number of prompt
    tokens. memory: (memory of an encoder, row in it); None without an encoder. start: index of the first token that
    the model sees.   read: number of tokens in the state or before ``start``.
    """

    key: int
    tokens: list[int]
    prompt: int
    memory: tuple[Memory, int] | None = None
    start: int = 0
    read: int = 0

    def child(self, key: int) -> DecodedRow:
        """Copy with another ``key``, which continues as a text of its own."""
        return DecodedRow(key, list(self.tokens), self.prompt, self.memory, self.start, self.read)


class Next(NamedTuple):
    """Successor of a row: a text that continues it.

    parent: index of the row in the batch.   tokens: ids appended to it.   key: its new key; None: the parent's.
    """

    parent: int
    tokens: Sequence[int]
    key: int | None = None


class _Mark(NamedTuple):
    """State to which a row can return: ``places`` maps its key to (row in ``state``, start, number of tokens read)."""

    state: State
    places: dict[int, tuple[int, int, int]]


class _Part(NamedTuple):
    """Vectors (B, N, D) of a forward pass over the rows at ``places``, of which ``counts`` (B) are not padding."""

    places: list[int]
    vectors: Tensor
    counts: list[int]

    def last(self) -> Tensor:
        """Vector of the last unpadded position of each row, (B, 1, D)."""
        width = self.vectors.shape[1]
        if self.counts.count(width) == len(self.counts):
            return self.vectors[:, -1:] if width > 1 else self.vectors
        device = self.vectors.device
        rows = torch.arange(len(self.counts), device=device)
        return self.vectors[rows, torch.tensor(self.counts, device=device) - 1][:, None]


class Reading:
    """Result of a forward pass over all rows: the head's input vectors at the new tokens."""

    def __init__(self, model: Transformer, parts: Sequence[_Part]):
        self.model, self.parts = model, parts

    def logits(self) -> Tensor:
        """Next-token logits (B, V) after the last token of each row."""
        last = [part.last() for part in self.parts]
        if len(last) > 1:
            places = [place for part in self.parts for place in part.places]
            last = [torch.cat(last)[inverse(places)]]
        # The head is applied to one vector of each row only.
        return self.model.head(last[0])[:, 0]

    def all_logits(self, place: int) -> Tensor:
        """Next-token logits (N, V) after each new token of the row at ``place``."""
        part = next(part for part in self.parts if place in part.places)
        i = part.places.index(place)
        return self.model.head(part.vectors[i : i + 1, : part.counts[i]])[0]

    def ends(self, counts: Sequence[int]) -> Tensor:
        """Next-token logits (M, V) after each of the last ``counts[place]`` tokens of a row, M in all, row by row."""
        where = {place: (part, i) for part in self.parts for i, place in enumerate(part.places)}
        found: list[Tensor] = []
        for place, count in enumerate(counts):
            part, i = where[place]
            found.append(part.vectors[i, part.counts[i] - count : part.counts[i]])
        return self.model.head(torch.cat(found)[None])[0]


Policy = Callable[[Sequence[DecodedRow], Reading], Sequence[Next]]
"""Function (rows, their forward pass) -> successors, in the order of the next batch; a row without one is evicted."""


class Engine:
    """Decoding engine: advances rows of different lengths in one batch as the policy decides, until no row is left."""

    def __init__(self, model: Transformer, policy: Policy, capacity: int | None = None):
        """Create an engine without rows. ``capacity``: fixed number of state positions; None grows by doubling."""
        self.model, self.policy, self.capacity = model, policy, capacity
        self._limit, self._device = model.limit, model.device
        self.rows: list[DecodedRow] = []
        self._state: State | None = None
        self._held = 0
        """Number of first rows that the state contains; rows after them have not been read."""
        self._mark: _Mark | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the decoding state of all rows."""
        return 0 if self._state is None else nbytes(self._state)

    def admit(self, texts: Sequence[Sequence[int]], keys: Sequence[int], memory: Memory | None = None) -> None:
        """Add texts (token ids) with their keys at the end of the batch; the next step reads them.

        ``memory``: encoder output, one row per text.
        """
        for i, (text, key) in enumerate(zip(texts, keys, strict=True)):
            self.rows.append(DecodedRow(key, list(text), len(text), None if memory is None else (memory, i)))

    @torch.inference_mode()
    def step(self) -> None:
        """Run one forward pass over the tokens not yet read, and continue with the policy's choice of successors."""
        if self.rows:
            self._follow(self.policy(self.rows, self._read()))

    @torch.inference_mode()
    def evict(self, places: Collection[int]) -> None:
        """Remove the rows at the indices ``places`` and free their state."""
        kept = [place for place in range(len(self.rows)) if place not in places]
        self._keep([place for place in kept if place < self._held])
        self.rows = [self.rows[place] for place in kept]

    def room(self, place: int) -> int | None:
        """Number of tokens that the state of a row can take after its text; None for any number.

        0 for a row that the next step reads from the start of its context.
        """
        row, most = self.rows[place], [limit for limit in (self._limit, self.capacity) if limit is not None]
        if place >= self._held or row.read <= row.start:
            return 0
        return max(0, min(most) - (len(row.tokens) - row.start)) if most else None

    @torch.inference_mode()
    def mark(self) -> None:
        """Remember the state, so that ``cut`` can return to it; a state that can drop positions is not copied."""
        if self._state is not None and not self.model.rewindable:
            held = enumerate(self.rows[: self._held])
            places = {row.key: (place, row.start, row.read) for place, row in held}
            self._mark = _Mark(map_tensors(Tensor.clone, self._state), places)

    @torch.inference_mode()
    def cut(self, lengths: Sequence[int]) -> None:
        """Shorten the text of each row to ``lengths`` tokens at most, and take back what was read after them.

        A state that cannot drop positions returns to that of the latest ``mark``; a row without one is read from the
        start of its context in the next step. The mark is used up.
        """
        for row, length in zip(self.rows, lengths, strict=True):
            del row.tokens[length:]
        short = [place for place, row in enumerate(self.rows[: self._held]) if row.read > len(row.tokens)]
        if short and self.model.rewindable:
            for row in (self.rows[place] for place in short):
                row.read = len(row.tokens) if self._in_place(row) else row.start
            left = [row.read - row.start for row in self.rows[: self._held]]
            assert self._state is not None
            self._state = self.model.rewind(self._state, torch.tensor(left))
        elif short:
            self._return(short)
        self._mark = None

    def _in_place(self, row: DecodedRow) -> bool:
        """True if the context of a row begins where its state does; it may have slid for tokens that were cut."""
        return row.start == first_seen(len(row.tokens), self._limit)

    def _return(self, places: list[int]) -> None:
        """Let the rows at ``places`` have the state of the mark again; those that cannot are read from their start."""
        index, known = list(range(self._held)), self._mark.places if self._mark else {}
        for place in places:
            row = self.rows[place]
            i, start, read = known.get(row.key, (0, -1, 0))
            if start == row.start and read <= len(row.tokens) and self._in_place(row):
                index[place], row.read = self._held + i, read
            else:
                row.read = row.start
        if self._mark and index == list(range(self._held, self._held + len(known))):
            self._state = self._mark.state
        elif self._mark and max(index) >= self._held:
            self._state = rows(join(self._state, self._mark.state), index)

    def _read(self) -> Reading:
        """Run the forward pass over the tokens that the state does not contain yet."""
        begun = self._beginning()
        going = [place for place in range(self._held) if place not in begun]
        self._keep(going)
        parts, states = [], []
        for places, state in ((going, self._state), (begun, None)):
            if places:
                part, state = self._forward(places, state)
                parts.append(part)
                states.append(state)
        self._state, self._held = states[0] if len(states) == 1 else join(*states), len(self.rows)
        if len(states) > 1 and going + begun != list(range(self._held)):
            self._state = rows(self._state, inverse(going + begun))
        return Reading(self.model, parts)

    def _beginning(self) -> list[int]:
        """Indices of the rows that must be read from the start: new rows, and those whose context window slides."""
        limit = math.inf if self._limit is None else self._limit
        return [
            place
            for place, row in enumerate(self.rows)
            if place >= self._held or row.read <= row.start or len(row.tokens) - row.start > limit
        ]

    def _forward(self, places: list[int], state: State | None) -> tuple[_Part, State]:
        """Run the model on the new tokens of rows ``places``; without a state, from the start of their context."""
        model, read, prefix = self.model, [self.rows[place] for place in places], None
        if state is None:
            for row in read:
                row.start = row.read = first_seen(len(row.tokens), self._limit)
            state = model.init_state(len(read), self.capacity, _memory(read))
            if model.reads_prefix:  # the visible part of the prompt
                prefix = torch.tensor([max(0, row.prompt - row.start) for row in read], device=self._device)
        texts = [row.tokens[row.read :] for row in read]
        counts = list(map(len, texts))
        ids, lengths = batch_of(texts, self._device)
        vectors, after = model.features(Signal(ids, lengths, prefix=prefix), state)
        for row in read:
            row.read = len(row.tokens)
        assert after is not None
        return _Part(places, vectors, counts), after

    def _follow(self, successors: Sequence[Next]) -> None:
        """Replace the rows by their successors: evict, reorder, fork and extend them."""
        before, taken = self.rows, set[int]()
        self._keep([one.parent for one in successors])
        self.rows = []
        for parent, tokens, key in successors:
            row, key = before[parent], before[parent].key if key is None else key
            if parent in taken:
                row = row.child(key)
                del row.tokens[row.read :]  # what the first successor has appended
            taken.add(parent)
            row.key = key
            row.tokens.extend(tokens)
            self.rows.append(row)

    def _keep(self, parents: list[int]) -> None:
        """Reorder the state so that its row i is the former row ``parents[i]``, which may repeat.

        Rows that stay are not copied if others can be overwritten.
        """
        count, self._held = self._held, len(parents)
        if parents == list(range(count)):
            return
        if not parents:
            self._state = None
            return
        moved = [place for place, parent in enumerate(parents) if place != parent]
        sources = [parents[place] for place in moved]
        if len(parents) == count and not set(moved) & set(sources):
            self._state = overwrite(self._state, moved, sources)
        else:
            self._state = rows(self._state, parents)


def inverse(order: Sequence[int]) -> list[int]:
    """Inverse permutation: position of each index in ``order``."""
    places = [0] * len(order)
    for place, item in enumerate(order):
        places[item] = place
    return places


def _memory(read: Sequence[DecodedRow]) -> Memory | None:
    """Encoder output of the rows, one row each; None without an encoder.

    If the rows are all of one memory, in order, it is returned itself.
    """
    found = [row.memory for row in read if row.memory is not None]
    if not found:
        return None
    whole = found[0][0]
    if all(memory is whole for memory, _ in found):
        index = [i for _, i in found]
        return whole if index == list(range(whole.lengths.shape[0])) else rows(whole, index)
    joined = rows(whole, [found[0][1]])
    for memory, i in found[1:]:
        joined = join(joined, rows(memory, [i]))
    return joined
