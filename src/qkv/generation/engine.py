"""Decoding engine: the decoding loop that sampling, beam search and scoring share.

    admit ── rows ── read ── policy ─┬─ no successor: the row is evicted
               │                     ├─ one successor: its tokens are appended
               └─────────────────────┴─ several: the row is forked

"Reading" tokens is the forward pass that adds them to the decoding state, such as a KV cache. ``read`` runs the model
on the tokens of each row that its state lacks: the token of the last step or, where rows were forked, several. Rows
that were just admitted are read in separate prefill passes, one per step, and join the others when they are ready
(``qkv.generation.queue.prefill``). So rows can be admitted while others decode, and a long prompt does not delay them.
Rows whose context slides are read again within the step.

``cut`` undoes proposed tokens that were rejected: it truncates texts and removes the truncated positions from the
state. A state that cannot drop positions, such as that of a GRU, is restored from the copy made by ``mark``, and the
tokens accepted since then are read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generation.context import first_seen
from qkv.generation.queue.prefill import Begun, DecodedRow, HeadInput, Logits, Prefill, continued
from qkv.generation.queue.prefixes import Prefixes
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.fast.layout import lay_out
from qkv.models.state import State
from qkv.models.transformer import Transformer
from qkv.state.tree import join, nbytes, overwrite, rows


class Next(NamedTuple):
    """Successor of a row: a text that continues it.

    parent: index of the row in the batch.   tokens: ids to append.   key: key of the successor; None: the parent's key.
    """

    parent: int
    tokens: Sequence[int]
    key: int | None = None


class _Mark(NamedTuple):
    """Copy of the state, from which ``cut`` can restore rows. ``places``: key of each row -> (row in ``state``, start,
    number of tokens read).
    """

    state: State
    places: dict[int, tuple[int, int, int]]


class _Part(NamedTuple):
    """Result of a forward pass for the rows at the indices ``places`` of the batch."""

    places: list[int]
    read: HeadInput | Logits


class Reading:
    """Result of the forward passes over all rows: logits after the new tokens, or the head's inputs at them."""

    def __init__(self, model: Transformer, parts: Sequence[_Part]):
        self.model, self.parts = model, parts

    def logits(self) -> Tensor:
        """Compute next-token logits (B, V) after the last token of each row."""
        return self.ends([1] * sum(len(part.places) for part in self.parts))

    def all_logits(self, place: int) -> Tensor:
        """Compute next-token logits (N, V) after each new token of the row at index ``place``."""
        part = next(part for part in self.parts if place in part.places)
        i = part.places.index(place)
        return self._computed([part], [part.read.lines(i, part.read.counts[i])])[0]

    def ends(self, counts: Sequence[int]) -> Tensor:
        """Compute next-token logits (M, V) after each of the last ``counts[place]`` tokens of each row.

        M = Σ counts; the lines are row by row.
        """
        if len(self.parts) == 1 and isinstance(read := self.parts[0].read, Logits) and read.counts == counts:
            return read.values
        where = {place: (part, i) for part in self.parts for i, place in enumerate(part.places)}
        parts = [where[place][0] for place in range(len(counts))]
        lines = [where[place][0].read.lines(where[place][1], count) for place, count in enumerate(counts)]
        return torch.cat(self._computed(parts, lines))

    def _computed(self, parts: Sequence[_Part], lines: list[Tensor]) -> list[Tensor]:
        """Return the logits of ``lines``; the head is applied in one call to all lines that are head inputs.

        parts: for each element of ``lines``, the forward pass that it is from.
        """
        several = [i for i, part in enumerate(parts) if isinstance(part.read, HeadInput)]
        if several:
            several_logits = self.model.head(torch.cat([lines[i] for i in several])[:, None])[:, 0]
            for i, logits in zip(several, several_logits.split([len(lines[i]) for i in several]), strict=True):
                lines[i] = logits
        return lines


Policy = Callable[[Sequence[DecodedRow], Reading], Sequence[Next]]
"""Function (rows, logits after them) -> successors, in the order of the next batch; a row without one is evicted."""


class Engine:
    """Decoding engine: advances rows of different lengths in one batch as the policy decides, until no row is left."""

    def __init__(self, model: Transformer, policy: Policy, capacity: int | None = None, pages: bool = False):
        """Create an engine without rows. ``capacity``: fixed number of state positions; None grows by doubling.

        ``pages``: store keys and values in pages, see ``Transformer.init_state``.
        """
        self.model, self.policy, self.capacity = model, policy, capacity
        self._limit = model.limit
        self.rows: list[DecodedRow] = []
        """All rows: first the ready rows, then those that are not ready yet, in the order of their admission."""
        self._state: State | None = None
        self._held = 0
        """Number of ready rows: the first rows, which the state contains and the policy sees."""
        self._prefill = Prefill(model, capacity, pages=pages)
        self._mark: _Mark | None = None

    @property
    def states(self) -> list[State]:
        """Decoding states of all rows, which may share pages."""
        return [*self._prefill.states, *([] if self._state is None else [self._state])]

    @property
    def nbytes(self) -> int:
        """Bytes of the decoding state of all rows."""
        return nbytes(self.states)

    def clear(self) -> None:
        """Remove all rows and free their states without adding them to the prefix cache."""
        self.rows, self._state, self._held, self._mark = [], None, 0, None
        self._prefill = Prefill(self.model, self.capacity, self._prefill.prefixes, self._prefill.pages)

    def share(self, prefixes: Prefixes) -> None:
        """Use a prefix cache: later rows start from its states, and the states of rows that end are added to it."""
        self._prefill.prefixes = prefixes

    def admit(
        self,
        texts: Sequence[Sequence[int]],
        keys: Sequence[int],
        memory: Memory | None = None,
        inputs: Sequence[Mapping[str, Signal]] | None = None,
    ) -> None:
        """Add texts (token ids) with their keys at the end of the batch; the next steps read them.

        The policy is called with them from the step in which all of them have been read. ``memory``: encoder output,
        one row per text. ``inputs``: values of the inputs other than text of each text, see ``Signal.inputs``.
        """
        values = inputs or [None] * len(texts)
        new = [
            DecodedRow(key, list(text), len(text), None if memory is None else (memory, i), inputs=row_inputs)
            for i, (text, key, row_inputs) in enumerate(zip(texts, keys, values, strict=True))
        ]
        self.rows += new
        self._prefill.add(new)

    @torch.inference_mode()
    def step(self) -> None:
        """Read the new tokens of each ready row, run a prefill pass over waiting rows, and apply the policy.

        Without a ready row the policy is not called.
        """
        reading = self._read()
        if self._held:
            self._follow(self.policy(self.rows[: self._held], reading))

    @torch.inference_mode()
    def read_waiting(self) -> None:
        """Read all waiting rows to their end, so that they are ready in the next step."""
        while self._prefill.waiting:
            self._prefill.step()

    @torch.inference_mode()
    def evict(self, places: Collection[int]) -> None:
        """Remove the rows at the indices ``places`` and free their state."""
        rest = [place for place in range(len(self.rows)) if place not in places]
        self._remember([place for place in places if place < self._held])
        self._prefill.drop([self.rows[place] for place in places if place >= self._held])
        self._keep([place for place in rest if place < self._held])
        self.rows = [self.rows[place] for place in rest]

    def room(self, place: int) -> int | None:
        """Return the number of tokens that still fit into a row's state after its text; None if unbounded.

        Return 0 for a row that is read from the start of its context in the next step.
        """
        row, most = self.rows[place], [limit for limit in (self._limit, self.capacity) if limit is not None]
        if place >= self._held or row.read <= row.start:
            return 0
        return max(0, min(most) - (len(row.tokens) - row.start)) if most else None

    @torch.inference_mode()
    def mark(self) -> None:
        """Copy the state, so that ``cut`` can restore it; a state that can drop positions needs no copy."""
        if self._state is not None and not self.model.rewindable:
            rows_in_state = enumerate(self.rows[: self._held])
            places = {row.key: (place, row.start, row.read) for place, row in rows_in_state}
            self._mark = _Mark(rows(self._state, list(range(self._held))), places)

    @torch.inference_mode()
    def cut(self, lengths: Sequence[int]) -> None:
        """Truncate the text of each ready row to at most ``lengths`` tokens, and remove later positions from the state.

        A state that cannot drop positions is restored from the latest ``mark``; a row that the mark lacks is read from
        the start of its context in the next step. The mark is discarded.
        """
        for row, length in zip(self.rows[: self._held], lengths, strict=True):
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
        """Return whether a row's context begins where its state does.

        It does not if the context slid because of tokens that were truncated later.
        """
        return row.start == first_seen(len(row.tokens), self._limit)

    def _return(self, places: list[int]) -> None:
        """Restore the rows at ``places`` from the mark; rows that the mark cannot restore are read from their start."""
        index, marks = list(range(self._held)), self._mark.places if self._mark else {}
        for place in places:
            row = self.rows[place]
            i, start, read = marks.get(row.key, (0, -1, 0))
            if start == row.start and read <= len(row.tokens) and self._in_place(row):
                index[place], row.read = self._held + i, read
            else:
                row.read = row.start
        if self._mark and index == list(range(self._held, self._held + len(marks))):
            self._state = self._mark.state
        elif self._mark and max(index) >= self._held:
            self._state = rows(join(self._state, self._mark.state), index)

    def _read(self) -> Reading:
        """Run the forward pass over the tokens that the state lacks, and one or a few prefill passes."""
        anew = self._beginning()
        going = [place for place in range(self._held) if place not in anew]
        first = self._held
        self._keep(going)
        parts, states = list[_Part](), list[State]()
        if self._state is not None:
            lay_out(self.model)  # not before the first token
            read, state = continued(self.model, [self.rows[place] for place in going], self._state)
            parts.append(_Part(going, read))
            states.append(state)
            self._state = None
        begun_anew = self._read_anew([self.rows[place] for place in anew]) if anew else []
        self._prefill.catch_up(len(going))
        places = [*anew, *range(first, len(self.rows))]
        for begun in (*begun_anew, *self._prefill.ready()):
            begun_places, places = places[: len(begun.rows)], places[len(begun.rows) :]
            parts.append(_Part(begun_places, begun.last))
            states.append(begun.state)
        self._hold(states, [place for part in parts for place in part.places])
        return Reading(self.model, parts)

    def _read_anew(self, several: Sequence[DecodedRow]) -> list[Begun]:
        """Read ready rows from the start of their context."""
        again = Prefill(self.model, self.capacity, pages=self._prefill.pages)
        again.add(several)
        while again.waiting:
            again.step()
        return again.ready()

    def _hold(self, states: list[State], places: Sequence[int]) -> None:
        """Concatenate ``states`` to the state of all ready rows, in the order of the batch. places: index in the batch
        of each row of ``states``.
        """
        self._state, self._held = None, len(places)
        while states:  # popped, so that each state is freed once it is joined
            state = states.pop(0)
            self._state = state if self._state is None else join(self._state, state)
        if list(places) != list(range(self._held)):
            self._state = rows(self._state, inverse(places))

    def _beginning(self) -> list[int]:
        """Return the indices of the ready rows that must be read from the start: their context slides, or their state
        has been discarded.
        """
        limit = math.inf if self._limit is None else self._limit
        return [
            place
            for place, row in enumerate(self.rows[: self._held])
            if row.read <= row.start or len(row.tokens) - row.start > limit
        ]

    def _follow(self, successors: Sequence[Next]) -> None:
        """Replace the rows by their successors: evict, reorder, fork and extend them."""
        before, waiting, seen = self.rows, self.rows[self._held :], set[int]()
        going = {one.parent for one in successors}
        self._remember([place for place in range(self._held) if place not in going])
        self._keep([one.parent for one in successors])
        self.rows = []
        for parent, tokens, key in successors:
            row, key = before[parent], before[parent].key if key is None else key
            if parent in seen:
                row = row.child(key)
                del row.tokens[
                    row.read :
                ]  # tokens that belong to the first successor, which was appended to the same row
            seen.add(parent)
            row.key = key
            row.tokens.extend(tokens)
            self.rows.append(row)
        self.rows += waiting

    def _remember(self, places: Sequence[int]) -> None:
        """Add the states of rows that end to the prefix cache."""
        prefixes, state = self._prefill.prefixes, self._state
        if prefixes is None or state is None:
            return
        for place in places:
            row = self.rows[place]
            if not row.start:
                prefixes.keep(row.tokens[: row.read], state, place)

    def _keep(self, parents: list[int]) -> None:
        """Reorder the state so that its row i is the former row ``parents[i]``; indices may repeat.

        If the number of rows is unchanged and no overwritten row is copied elsewhere, only these rows are written.
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
    """Invert a permutation: return the position of each index in ``order``."""
    places = [0] * len(order)
    for place, item in enumerate(order):
        places[item] = place
    return places
