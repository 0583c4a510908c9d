"""Chunked prefill: passes over new texts have a bounded size, so that rows that decode meanwhile do not wait long.

    admitted ── groups, in order ── one pass ─┬─ several groups, if they fit ─┬─ ready: joins the rows that decode
                                              ├─ some rows of a group         │
                                              └─ a chunk of one row ──────────┘

A pass reads at most ``pass_size`` positions, padding included. The texts of one admission are a group: they become
ready together. If several waiting texts share a prefix and the prefix cache has room for it, the first is read alone,
and the others start from its cached state. A text that does not fit is read in chunks, with the state passed on from
chunk to chunk, which gives the same outputs as one pass. An exception is a model whose outputs depend on the length of
a prefix (``reads_prefix``): it reads the prefix in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.generation.context import first_seen
from qkv.generation.queue.prefixes import FEWEST, Prefixes, SharedPrefix, common
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.state import State
from qkv.models.transformer import Transformer
from qkv.ops.native.step import MOST_VECTORS
from qkv.state.tree import join, rows

PASS = {"cpu": 512}
"""Maximum number of positions of a pass, by device type. More positions need more memory for activations and delay the
tokens of rows that decode meanwhile. With far fewer, loading the weights takes longer than the matrix products.
"""
_PASS_ELSEWHERE = 2048
_ANOTHER_PASS = 64
"""Minimum number of positions that an additional pass must save, because loading the weights once more takes about as
long as computing this many positions.
"""
MOST_PASSES = 4
"""Maximum number of prefill passes per step while more rows wait than decode. Waiting rows then join the batch before
the decoding rows are far ahead, and each token is delayed by at most this many passes.
"""


def pass_size(device: torch.device) -> int:
    """Return the maximum number of positions that a pass reads, padding included."""
    return PASS.get(device.type, _PASS_ELSEWHERE)


@dataclass
class DecodedRow:
    """Text that is being decoded, a row of the batch.

    key: number by which the policy identifies the row.   tokens: ids of the text, prompt included.   prompt: number of
    prompt tokens. memory: (encoder output, row in it); None without an encoder. start: index of the first token that
    the model sees.   read: number of first tokens that are in the state or before ``start``. inputs: values of the
    inputs other than text, such as images, whose placeholders are in the prompt.
    """

    key: int
    tokens: list[int]
    prompt: int
    memory: tuple[Memory, int] | None = None
    start: int = 0
    read: int = 0
    inputs: Mapping[str, Signal] | None = None

    def child(self, key: int) -> DecodedRow:
        """Return a copy with another ``key`` and an independent list of tokens."""
        return replace(self, key=key, tokens=list(self.tokens))

    @property
    def unread_inputs(self) -> Mapping[str, Signal] | None:
        """Values of the inputs other than text if the state still lacks some of their positions, else None."""
        return self.inputs if self.inputs and min(self.tokens[self.read : self.prompt], default=0) < 0 else None

    @property
    def unread(self) -> int:
        """Number of tokens that the state lacks."""
        return len(self.tokens) - self.read


class HeadInput(NamedTuple):
    """Input vectors (B, N, D) of the head at the latest positions of B rows.

    counts (B): number of positions of each row; the rest is padding on the right.
    """

    vectors: Tensor
    counts: list[int]

    def lines(self, place: int, count: int) -> Tensor:
        """Return the vectors (count, D) of the last ``count`` positions of row ``place``."""
        end = self.counts[place]
        return self.vectors[place, end - count : end]

    def last(self) -> HeadInput:
        """Return the vector of the last unpadded position of each row."""
        return HeadInput(self._last(), [1] * len(self.counts))

    def rows(self, index: Sequence[int]) -> HeadInput:
        """Return the rows with indices ``index``."""
        return HeadInput(self.vectors[list(index)], [self.counts[i] for i in index])

    def _last(self) -> Tensor:
        width = self.vectors.shape[1]
        if self.counts.count(width) == len(self.counts):
            return self.vectors[:, -1:] if width > 1 else self.vectors
        device = self.vectors.device
        rows = torch.arange(len(self.counts), device=device)
        return self.vectors[rows, torch.tensor(self.counts, device=device) - 1][:, None]


class Logits(NamedTuple):
    """Logits (M, V) after the latest positions of B rows, row by row. counts (B): number of positions of each row."""

    values: Tensor
    counts: list[int]

    def lines(self, place: int, count: int) -> Tensor:
        """Return the logits (count, V) after the last ``count`` positions of row ``place``."""
        end = sum(self.counts[: place + 1])
        return self.values[end - count : end]

    def last(self) -> Logits:
        """Return the logits after the last position of each row."""
        return self._of([(place, 1) for place in range(len(self.counts))])

    def rows(self, index: Sequence[int]) -> Logits:
        """Return the rows with indices ``index``."""
        return self._of([(place, self.counts[place]) for place in index])

    def _of(self, ends: Sequence[tuple[int, int]]) -> Logits:
        return Logits(torch.cat([self.lines(*end) for end in ends]), [count for _, count in ends])


@dataclass
class Begun:
    """Rows whose texts have been read completely, with their state.

    last: input of the head at the last position of each row, or its logits there. state: decoding state of the rows.
    """

    rows: list[DecodedRow]
    last: HeadInput | Logits
    state: State

    def without(self, dropped: Callable[[DecodedRow], bool]) -> Begun | None:
        """Return a copy without the rows for which ``dropped`` is true; None if no row is left."""
        index = [i for i, row in enumerate(self.rows) if not dropped(row)]
        if len(index) == len(self.rows):
            return self
        rest = [self.rows[i] for i in index]
        return Begun(rest, self.last.rows(index), rows(self.state, index)) if rest else None


@dataclass
class _Group:
    """Rows that become ready together.

    left: rows that have not been read to their end. begun: state of the first of them, after its first chunks. done:
    rows that have been read.
    """

    left: list[DecodedRow]
    begun: State | None = None
    done: list[Begun] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of positions of one pass over all rows in ``left``, padding included."""
        return len(self.left) * max((row.unread for row in self.left), default=0)


class Prefill:
    """Texts that wait to be read from the start of their context, in the order of their admission."""

    def __init__(
        self, model: Transformer, capacity: int | None = None, prefixes: Prefixes | None = None, pages: bool = False
    ):
        """``capacity``: fixed number of positions of a state; None grows by doubling.

        prefixes: prefix cache, whose states texts may start from. pages: store keys and values in pages.
        """
        self.model, self.capacity, self.prefixes, self.pages = model, capacity, prefixes, pages
        self._most = pass_size(model.device)
        self._groups: list[_Group] = []

    @property
    def waiting(self) -> bool:
        """True if a row has not been read to its end."""
        return any(group.left for group in self._groups)

    @property
    def count(self) -> int:
        """Number of rows that have not been read to their end."""
        return sum(len(group.left) for group in self._groups)

    @property
    def states(self) -> list[State]:
        """All decoding states: partly read rows, and read rows that are not ready."""
        states = [state for group in self._groups for state in (group.begun, *(each.state for each in group.done))]
        return [state for state in states if state is not None]

    def add(self, texts: Sequence[DecodedRow]) -> None:
        """Add a group of rows, to be read from the start of their context."""
        for row in texts:
            row.start = row.read = first_seen(len(row.tokens), self.model.limit)
        if texts:
            self._groups.append(_Group(list(texts)))

    def drop(self, texts: Collection[DecodedRow]) -> None:
        """Remove rows and free their states."""
        gone = set(map(id, texts))
        for group in self._groups:
            if group.left and id(group.left[0]) in gone:
                group.begun = None
            group.left = [row for row in group.left if id(row) not in gone]
            groups = [each.without(lambda row: id(row) in gone) for each in group.done]
            group.done = [each for each in groups if each is not None]
        self._groups = [group for group in self._groups if group.left or group.done]

    def step(self) -> None:
        """Run one pass; nothing happens if no row waits."""
        group = next((group for group in self._groups if group.left), None)
        if group is None:
            return
        if group.begun is None:
            group = self._merged(group)
        count = self._fitting(group)
        several = group.left[:count]
        state = self._state(several) if group.begun is None else group.begun
        group.begun, parting = None, self._parting(several[0])
        most = self._most if parting is None else min(self._most, parting - several[0].read)
        whole = self.model.reads_prefix or several[0].unread_inputs is not None
        read, state = forward(self.model, several, state, None if whole else most)
        if several[0].unread:
            group.begun = state
            if several[0].read == parting or self._is_kept(several[0]):
                self._keep(several, state)
        else:
            group.left = group.left[count:]
            group.done.append(Begun(several, read.last(), state))
            self._end(several, state)

    def catch_up(self, decoding: int) -> None:
        """Run one pass, and further ones, ``MOST_PASSES`` in all, while more rows wait than decode.

        ``decoding``: number of rows that decode, which wait for these passes.
        """
        self.step()
        for _ in range(MOST_PASSES - 1):
            if decoding and self.count > decoding:
                self.step()

    def ready(self) -> list[Begun]:
        """Remove and return the rows of completed groups, in order, up to the first group that is still incomplete."""
        groups: list[Begun] = []
        while self._groups and not self._groups[0].left:
            groups += self._groups.pop(0).done
        return groups

    def _look_up(self, texts: Sequence[DecodedRow]) -> None:
        """Set ``read`` of rows without a state to the length of their cached prefix."""
        for row in texts:
            shared = self._shared(row)
            row.read = row.start + (shared.length if shared else 0)

    def _shared(self, row: DecodedRow) -> SharedPrefix | None:
        if self.prefixes is None or row.start or self.model.tap is not None:  # a tap may replace values of the state
            return None
        shared = self.prefixes.find(row.tokens)
        if shared is None or not row.inputs or min(row.tokens[shared.length :]) >= 0:
            return shared
        return None  # inputs other than text are read in one pass

    def _merged(self, first: _Group) -> _Group:
        """Merge ``first`` with the groups after it that fit into the same pass; they become ready together."""
        place = self._groups.index(first)
        self._look_up(first.left)
        if self._lends(first, self._groups[place + 1 :]):
            return first
        while len(self._groups) > place + 1:
            after = self._groups[place + 1]
            self._look_up(after.left)
            both = _Group(first.left + after.left, done=first.done)
            if both.size > self._most or len({self._kind(row) for row in both.left}) > 1:
                break
            self._groups[place : place + 2] = [both]
            first = both
        return first

    def _lends(self, first: _Group, later: Sequence[_Group]) -> bool:
        """Return whether to read ``first`` alone and cache its state: ``later`` share a prefix with it, and need not
        read so many positions that this outweighs the additional pass.
        """
        row, prefixes = first.left[0], self.prefixes
        if len(first.left) > 1 or prefixes is None or row.start or not self.model.rewindable:
            return False
        if not prefixes.has_room(len(row.tokens)):
            return False
        saved = 0
        for other in (each for group in later for each in group.left if not each.start):
            beginning, shared = min(common(row.tokens, other.tokens), len(other.tokens) - 1), self._shared(other)
            read = shared.length if shared else 0
            saved += max(0, beginning - read) if beginning >= FEWEST else 0
        return saved >= _ANOTHER_PASS

    def _kind(self, row: DecodedRow) -> int:
        """Return the kind of a row; a pass reads rows of one kind. 0: read from the start of the context, 1: read from
        a cached state, 2: read alone.
        """
        return 2 if row.unread_inputs or self._parting(row) else int(row.read > row.start)

    def _parting(self, row: DecodedRow) -> int | None:
        """Return the number of tokens after which the state of a row is cached because other texts diverge there; None
        if there is no such position.
        """
        if self.prefixes is None or row.start or row.unread_inputs:
            return None
        return self.prefixes.parting(row.tokens, row.read)

    def _fitting(self, group: _Group) -> int:
        """Return how many rows at the front of a group the next pass reads."""
        first = group.left[0]
        if group.begun is not None or self._kind(first) == 2:
            return 1
        count, longest = 1, first.unread
        for row in group.left[1:]:
            longest = max(longest, row.unread)
            if (count + 1) * longest > self._most or self._kind(row) != self._kind(first):
                break
            count += 1
        return count

    def _state(self, several: Sequence[DecodedRow]) -> State:
        """Return the initial state of rows of one kind: empty, or copied from the prefix cache."""
        if several[0].read == several[0].start:
            return self.model.init_state(len(several), self.capacity, memory_of(several), self.pages)
        assert self.prefixes is not None
        prefixes = [shared for row in several if (shared := self._shared(row)) is not None]
        return reduce(join, [self.prefixes.take(shared) for shared in prefixes])

    def _end(self, several: Sequence[DecodedRow], state: State) -> None:
        """Record the texts of rows that have been read completely, and cache their states if these can drop positions;
        other states would serve only texts that begin with the whole text.
        """
        if self.prefixes is not None:
            for row in several:
                self.prefixes.saw(row.tokens)
            if self.model.rewindable:
                self._keep(several, state)

    def _is_kept(self, row: DecodedRow) -> bool:
        """Return whether to cache the state after the latest chunk of a row: after 1, 2, 4 … chunks, if later states
        cannot be rewound to it.
        """
        chunks = row.read // self._most
        return not self.model.rewindable and not chunks & (chunks - 1)

    def _keep(self, several: Sequence[DecodedRow], state: State) -> None:
        """Add the states of rows to the prefix cache, each with the tokens that it has read."""
        for i, row in enumerate(several):
            if self.prefixes is not None and not row.start and self.model.tap is None:
                self.prefixes.keep(row.tokens[: row.read], state, i)


def forward(
    model: Transformer, read: Sequence[DecodedRow], state: State, most: int | None = None
) -> tuple[HeadInput | Logits, State]:
    """Run the model on the tokens that the state lacks, at most ``most`` of each row (None: all).

    Logits are computed only where a tap receives them.
    """
    prefix = None
    if model.reads_prefix and not any(state.positions):  # the visible part of the prompt
        prefix = torch.tensor([max(0, row.prompt - row.start) for row in read], device=model.device)
    texts = [row.tokens[row.read :] if most is None else row.tokens[row.read : row.read + most] for row in read]
    counts, inputs = list(map(len, texts)), read[0].unread_inputs
    if inputs is not None:
        assert len(read) == 1, "rows with inputs other than text are read alone"
        inputs = {name: signal.to(model.device) for name, signal in inputs.items()}
    signal = replace(Signal.of_rows(texts, model.device), prefix=prefix, inputs=inputs)
    observed = model.offers(model.tap, "head.output")
    outputs, after = model(signal, state) if observed else model.features(signal, state)
    for row, count in zip(read, counts, strict=True):
        row.read += count
    assert after is not None
    return Logits(signal.unpadded(outputs), counts) if observed else HeadInput(outputs, counts), after


def continued(model: Transformer, read: Sequence[DecodedRow], state: State) -> tuple[HeadInput | Logits, State]:
    """Run the model on all tokens that the state lacks, in passes of bounded size over all rows."""
    counts, most = [row.unread for row in read], pass_size(model.device)
    fits = len(read) * max(counts) <= most
    if max(counts) == 1 or (fits and sum(counts) <= MOST_VECTORS):
        logits, after = model.decode([row.tokens[row.read :] for row in read], state)
        for row in read:
            row.read = len(row.tokens)
        return Logits(logits, counts), after
    if fits:
        return forward(model, read, state)
    parts: list[HeadInput | Logits] = []
    while any(row.unread for row in read):
        part, state = forward(model, read, state, max(1, most // len(read)))
        parts.append(part)
    lines = [torch.cat([part.lines(i, part.counts[i]) for part in parts]) for i in range(len(read))]
    if isinstance(parts[0], Logits):
        return Logits(torch.cat(lines), list(map(len, lines))), state
    return HeadInput(pad_sequence(lines, batch_first=True), list(map(len, lines))), state


def memory_of(read: Sequence[DecodedRow]) -> Memory | None:
    """Return the encoder output of the rows, in their order; None without an encoder.

    If these are all rows of one encoder output, in order, it is returned without a copy.
    """
    memories = [row.memory for row in read if row.memory is not None]
    if not memories:
        return None
    whole = memories[0][0]
    if all(memory is whole for memory, _ in memories):
        index = [i for _, i in memories]
        return whole if index == list(range(whole.lengths.shape[0])) else rows(whole, index)
    joined = rows(whole, [memories[0][1]])
    for memory, i in memories[1:]:
        joined = join(joined, rows(memory, [i]))
    return joined
