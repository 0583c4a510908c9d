"""The model: front end, blocks, norm, head, and in an encoder–decoder a second stack, or latents. The only place that counts positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.frontends.border import check_call, check_counts, check_rows
from qkv.frontends.text import TextFrontend
from qkv.layers.branch import Branch
from qkv.layers.context import Context, Given, Memory, Tap
from qkv.layers.norms import Norm, build_norm
from qkv.layers.positions import Learned
from qkv.layers.relative import share_tables
from qkv.models.block import Block
from qkv.models.heads import build_head
from qkv.models.queries import Queries
from qkv.models.reversible import through_reversible
from qkv.spec.errors import UserError, dotted
from qkv.spec.model import Encoder as EncoderSpec
from qkv.spec.model import Latents as LatentsSpec
from qkv.spec.model import Layered as LayeredSpec
from qkv.spec.model import Model, Text
from qkv.spec.model import Stack as StackSpec
from qkv.spec.parts import Axial, Positions
from qkv.spec.parts import Learned as LearnedSpec


class State(NamedTuple):
    """What a model remembers of each row.

    positions (B): how many it has seen.   limit (B): the fixed capacity, 0 where it grows.   blocks: one state a branch.
    prefix (B): how many of the first positions are its prefix, on which a mask may depend at later positions too.
    """

    positions: Tensor
    limit: Tensor
    blocks: tuple[tuple[Any, ...], ...]
    prefix: Tensor


class Layered(nn.Module):
    """Blocks one after another and a norm, x (B, N, D) -> (B, N, D). What makes x is a subclass's, and is there before ``lay``."""

    blocks: nn.ModuleList
    norm: Norm
    reversible = False
    recompute = False
    """Activation checkpointing: each block's inner values are computed again in the backward pass."""

    def lay(self, spec: LayeredSpec, width: int, name: str, memory_width: int | None = None) -> None:
        """Make blocks and norm. ``memory_width``: features of the vectors that the cross branches read; default: ``width``."""
        self.blocks = nn.ModuleList(Block(block, width, f"{name}.{i}", memory_width) for i, block in enumerate(spec.layers))
        share_tables(self.blocks.modules())
        self.reversible = spec.reversible
        self.norm = build_norm(spec.norm, spec.leaving(width))

    @property
    def walked(self) -> Sequence[nn.Module]:
        """The blocks in the order in which they are gone through."""
        return list(self.blocks)

    @property
    def branches(self) -> list[Branch]:
        """Every branch in order, from all blocks."""
        return [slot.body for block in self.blocks for slot in block.branches]  # type: ignore[union-attr]

    def through(self, x: Tensor, context: Context) -> Iterator[Tensor]:
        """The vectors after each block in turn, all positions at once; x (B, N, D) is what the first block reads. None of them is kept."""
        x = self._entering(x)
        for i, block in enumerate(self.walked):
            x = self._through(block, x, context.of_layer(i))
            yield x

    def last(self, x: Tensor, context: Context) -> Tensor:
        """The vectors after the last block. Reversible blocks keep nothing for their backward pass, unless a tap wants to see it."""
        if self.reversible and torch.is_grad_enabled() and context.tap is None:
            slots = [(slot, context.of_layer(i)) for i, block in enumerate(self.walked) for slot in block.branches]  # type: ignore[union-attr]
            return through_reversible(slots, self._entering(x))
        for after in self.through(x, context):
            x = after
        return x

    def _entering(self, x: Tensor) -> Tensor:
        """What the first block reads: the same in both streams, where there are two."""
        return torch.cat((x, x), -1) if self.reversible else x

    def _through(self, block: nn.Module, x: Tensor, context: Context) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(lambda x: block(x, context)[0], x, use_reentrant=False)  # type: ignore[no-any-return]
        return block(x, context)[0]


class Stack(Layered):
    """Front end, blocks and norm: ids (B, N) -> vectors (B, N, D)."""

    def __init__(
        self, spec: StackSpec, width: int, table: nn.Parameter | None = None, name: str = "blocks", memory_width: int | None = None
    ):
        """``table``: the token vectors of another stack, to be shared.   memory_width: see ``lay``."""
        super().__init__()
        assert isinstance(spec.frontend, Text)
        self.frontend = TextFrontend(spec.frontend, width, spec.context_length, table, spec.reads_types)
        self.lay(spec, width, name, memory_width)

    @property
    def limit(self) -> int | None:
        """How many positions have a vector; None where there is no end."""
        return self.frontend.limit

    def whole(self, count: int, lengths: Tensor | None, tap: Tap | None, given: Given) -> Context:
        """The context of ``count`` positions that are read at once and not remembered."""
        segments, positions = given.get("segments"), given.get("positions")
        if positions is None:
            steps = torch.arange(count, device=self.frontend.table.device)[None]
            positions = steps if segments is None else _restarted(segments)
        if given.get("positions") is not None or (segments is not None and self.limit is not None and count > self.limit):
            positions = self._placed(positions, lengths)
        else:
            self.fits(count)
        return Context(
            positions,
            lengths,
            segments,
            end=count,
            tap=tap,
            prefix=given.get("prefix"),
            visible=given.get("visible"),
            memory=given.get("memory"),
            types=given.get("types"),
        )

    def _placed(self, positions: Tensor, lengths: Tensor | None) -> Tensor:
        """Positions of which those of real tokens have a vector; padding may stand past the table's end."""
        if self.limit is None or not positions.numel():
            return positions
        real = positions
        if lengths is not None:
            real = positions.masked_fill(torch.arange(positions.shape[1], device=positions.device) >= lengths[:, None], 0)
        if int(real.min()) < 0:
            raise UserError(f"the position {int(real.min())} is before the first, 0")
        self.fits(int(real.max()) + 1)
        return positions.clamp(0, self.limit - 1)

    def fits(self, end: int) -> None:
        """Raise ``UserError`` if a position before ``end`` has no vector."""
        limit = self.limit
        if limit is not None and end > limit:
            raise UserError(
                f"{end} positions are more than the {limit} that the learned position table holds ({_sized_by(self.frontend.part.positions)}); "
                "shorten the input, or use positions without an end (sinusoidal, rope, alibi, none)"
            )


class Encoder(Stack):
    """The stack that reads the source of an encoder–decoder."""

    def __init__(self, spec: EncoderSpec, width: int, table: nn.Parameter | None):
        super().__init__(spec, width, table if spec.share_embedding else None, "encoder.blocks")
        self.each_layer = spec.memory == "layers"

    def forward(self, ids: Tensor, lengths: Tensor | None = None, tap: Tap | None = None) -> Memory:
        """ids (B, M) -> the memory; the output of each layer goes through the final norm."""
        check_call(ids, lengths, {}, self.frontend.table.device)
        context = self.whole(ids.shape[1], lengths, tap, {})
        x = self.frontend(ids, context)
        kept = list(self.through(x, context)) if self.each_layer else [self.last(x, context)]
        known = lengths if lengths is not None else torch.full(ids.shape[:1], ids.shape[1], device=ids.device)
        return Memory(tuple(self.norm(x, context) for x in kept), known)


class Latents(Layered):
    """M learned vectors through blocks whose cross branches read the input (Perceiver, Jaegle et al. 2021).

        m (B, N, Dm) ────────── memory ─┐
        table (M, Dz) ── z (B, M, Dz) ─ blocks ─ norm ─ (B, M, Dz)

    Padding of the input is not read, and every latent is real.
    """

    def __init__(self, spec: LatentsSpec, width: int, memory_width: int):
        super().__init__()
        self.walk = spec.walk
        self.vectors = Learned(LearnedSpec(), spec.count, width)
        self.lay(spec, width, "latents.blocks", memory_width)

    @property
    def walked(self) -> Sequence[nn.Module]:
        return [self.blocks[i] for i in self.walk]

    def forward(self, x: Tensor, context: Context) -> Memory:
        """What the M are once they have read x (B, N, Dm). Raises ``UserError`` where not all of a row may meet in them."""
        wrong = next((name for name in _APART if getattr(context, name) is not None), None)
        if wrong:
            raise UserError(f"{_APART[wrong]} ({wrong}) cannot be read by latents, in which all of a row meets; leave it out")
        count = len(self.vectors.table)
        steps = torch.arange(count, device=x.device)
        inside = Context(steps[None], end=count, tap=context.tap, memory=_memory(x, context.lengths))
        z = self.vectors(steps).expand(x.shape[0], -1, -1)
        return _memory(self.norm(self.last(z, inside), inside), None)


def _memory(x: Tensor, lengths: Tensor | None) -> Memory:
    known = lengths if lengths is not None else torch.full(x.shape[:1], x.shape[1], device=x.device)
    return Memory((x,), known)


_APART = {"segments": "packed documents", "visible": "a table of visible keys", "prefix": "a prefix"}


class Transformer(Stack):
    """ids (B, N) -> what the head answers: for a language model logits (B, N, V).

    Cut a row anywhere and pass the state along: the logits are those of one call, for rows of different lengths too. With an encoder,
    ``encode`` the source first and give its memory, once to ``init_state``, or to each call without a state.

    With latents (Perceiver, Jaegle et al. 2021) the blocks see the input through them alone, in one call without a state:

        ids ─ front end ─ x (B, N, Dm) ─ latents ─ z (B, M, Dz) ─ memory of the blocks, which begin with queries, or with x ─ norm ─ head
    """

    def __init__(self, spec: Model):
        super().__init__(spec, spec.width, memory_width=spec.latent_width)
        self.spec = spec
        table = self.frontend.table
        self.encoder = Encoder(spec.encoder, spec.width, table) if spec.encoder else None
        self.latents = Latents(spec.latents, spec.latent_width, spec.frontend_width(spec.width)) if spec.latents else None
        self.queries = Queries(spec.queries, spec.width, spec.context_length) if spec.queries else None
        self.head = build_head(spec.head, spec.leaving(spec.width), table)
        self.reads_prefix = spec.reads_prefix

    @property
    def every_branch(self) -> list[Branch]:
        """Those of the encoder or of the latents, then those of the model's own stack."""
        return [*(branch for before in (self.encoder, self.latents) if before for branch in before.branches), *self.branches]

    @property
    def limit(self) -> int | None:
        own, asked = self.frontend.limit, None if self.queries is None else self.queries.limit
        return min(own, asked) if own is not None and asked is not None else asked if own is None else own

    def recompute_blocks(self, on: bool) -> None:
        """Switch activation checkpointing for every block, those of an encoder or of latents included."""
        for layered in (self, self.encoder, self.latents):
            if layered is not None:
                layered.recompute = on

    @property
    def rewindable(self) -> bool:
        """True if the latest positions can be taken back."""
        return all(branch.rewindable for branch in self.branches)

    def encode(self, ids: Tensor, lengths: Tensor | None = None, tap: Tap | None = None) -> Memory:
        """The memory of a source, ids (B, M)."""
        if self.encoder is None:
            raise UserError("the model has no encoder to read a source with; give model.encoder, or join source and target in one sequence")
        return self.encoder(ids, lengths, tap)

    def init_state(self, batch: int, capacity: int | None = None, memory: Memory | None = None) -> State:
        """The state before the first position. ``capacity`` None: buffers double as needed; a number: they never move."""
        self._needs_decoding()
        if capacity is not None and capacity < 1:
            raise UserError(f"a state with a capacity of {capacity} holds no position; give at least 1, or none to let it grow")
        self._needs_memory(memory)
        if memory is not None:
            check_rows("the memory", memory.lengths.shape[0], "the state", batch)
        blocks = []
        for i, block in enumerate(self.blocks):
            known = memory and memory.of_layer(i)
            bodies = [slot.body for slot in block.branches]  # type: ignore[union-attr]
            blocks.append(tuple(b.remember(known) if known and b.spec.reads_memory else b.init_state(batch, capacity) for b in bodies))
        zeros = torch.zeros(batch, dtype=torch.long, device=self.frontend.table.device)
        return State(zeros, torch.full_like(zeros, capacity or 0), tuple(blocks), torch.zeros_like(zeros))

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes that the branches must keep after ``length`` positions."""
        return sum(branch.state_bytes(length, batch) for branch in self.branches)

    def rewind(self, state: State, lengths: Tensor) -> State:
        """The state as it was after ``lengths`` (B) positions of each row. Raises if a branch cannot go back."""
        if not self.rewindable:
            stuck = next(b for b in self.branches if not b.rewindable)
            raise UserError(f"the state of {stuck.spec.kind!r} cannot be cut to a length; keep a copy of it (rows) from before")
        check_counts("lengths", lengths, state.positions.shape[0], None, state.positions.device)
        if bool(((lengths > state.positions) | (lengths < 0)).any()):
            raise UserError(f"a state can only be rewound to what it has seen: {lengths.tolist()} asked, {state.positions.tolist()} seen")
        return state._replace(positions=lengths.to(state.positions))

    def forward(
        self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None, tap: Tap | None = None, **given: Unpack[Given]
    ) -> tuple[Tensor, State | None]:
        """(the head's answer, the next state). lengths (B): real tokens of each row; the rest is in ``qkv.layers.context.Given``."""
        x, state = self.features(ids, state, lengths, tap, **given)
        return self.head(x, lengths if self.spec.answers is None else None), state

    def features(
        self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None, tap: Tap | None = None, **given: Unpack[Given]
    ) -> tuple[Tensor, State | None]:
        """What the head reads: (vectors (B, N, D), the next state); of latents, or of a fixed number of queries, as many as there are."""
        check_call(ids, lengths, given, self.frontend.table.device)
        if state is None:
            self._needs_memory(given.get("memory"))
            context = self.whole(ids.shape[1], lengths, tap, given)
            return self.vectors(self.frontend(ids, context), context), None
        context = self._going_on(ids, state, lengths, tap, given)
        x = self._entering(self.frontend(ids, context))
        after = []
        for block, remembered in zip(self.blocks, state.blocks, strict=True):
            x, kept = block(x, context, remembered)
            after.append(kept)
        came = ids.shape[1] if lengths is None else lengths
        prefix = state.prefix if context.prefix is None else context.prefix.to(state.prefix)
        return self.norm(x, context), State(state.positions + came, state.limit, tuple(after), prefix)

    def vectors(self, x: Tensor, context: Context) -> Tensor:
        """What the head reads, from what the front end gives: x (B, N, D) through latents, blocks and norm."""
        if self.latents is not None:
            x, context = self._asking(x, context, self.latents(x, context))
        return self.norm(self.last(x, context), context)

    def _asking(self, x: Tensor, context: Context, known: Memory) -> tuple[Tensor, Context]:
        """What the blocks begin with once the latents have read x, and its context; the latents themselves where there is no block."""
        if not len(self.blocks):
            (z,) = known.vectors
            return z, Context(torch.arange(z.shape[1], device=x.device)[None], end=z.shape[1], tap=context.tap)
        if self.queries is None:
            return x, replace(context, memory=known)
        return self.queries(x, context, known)

    def _going_on(self, ids: Tensor, state: State, lengths: Tensor | None, tap: Tap | None, given: Given) -> Context:
        """The context of positions that come after those that ``state`` remembers."""
        wrong = next((name for name in ("segments", "positions", "visible", "memory") if given.get(name) is not None), None)
        if wrong:
            raise UserError(f"{_WITH_STATE[wrong]} cannot be joined with a state; {_INSTEAD[wrong]}")
        check_rows("the state", state.positions.shape[0], "the ids", ids.shape[0])
        count = ids.shape[1]
        steps = torch.arange(count, device=ids.device)[None]
        past = state.positions
        first = int(past[0]) if past.shape[0] else 0
        level = lengths is None and (past.shape[0] < 2 or bool((past == first).all()))
        end = first + count if level or not past.shape[0] else int((past + (count if lengths is None else lengths)).max())
        limit = int(state.limit[0]) if past.shape[0] else 0
        if limit and end > limit:
            raise UserError(f"the state holds {limit} positions and {end} are needed; give init_state a larger capacity, or none")
        self.fits(end)
        positions = steps + first if level else past[:, None] + steps
        if self.limit is not None:  # padding may stand past the table's end
            positions = positions.clamp(max=self.limit - 1)
        start = first if level else None
        prefix = given.get("prefix")
        if prefix is None and self.reads_prefix:
            prefix = state.prefix
        return Context(positions, lengths, None, past, start, end, tap, prefix, types=given.get("types"))

    def _needs_decoding(self) -> None:
        if not self.spec.decodes:
            path = dotted(("model", *self.spec.first_not_decoding()))
            raise UserError(
                f"{path}: this branch sees later positions, so the model cannot decode one token at a time; "
                "use a causal mask, or 'causal | prefix'"
            )

    def _needs_memory(self, memory: Memory | None) -> None:
        if self.spec.reads_memory and memory is None and not self.spec.latents:
            path = dotted(("model", *self.spec.first_branch(lambda branch: branch.reads_memory)))
            raise UserError(f"{path}: this branch reads an encoder's output; encode the source and give its memory")
        if memory is not None and (self.spec.latents or not self.spec.reads_memory):
            raise UserError("the model has no branch that reads a memory; leave the memory out")


_WITH_STATE = {
    "segments": "packed documents (segments)",
    "positions": "positions of one's own",
    "visible": "a table of visible keys",
    "memory": "a memory",
}
_INSTEAD = {
    "segments": "give each document a row of its own",
    "positions": "only the stack counts positions",
    "visible": "read the whole sequence at once",
    "memory": "give it to init_state, which reads it once",
}


def _sized_by(positions: Positions) -> str:
    """The key that says how many positions have a vector."""
    return "model.frontend.positions.shape" if isinstance(positions, Axial) else "model.context_length"


def _restarted(segments: Tensor) -> Tensor:
    """Positions that begin at 0 in each document of a packed row; (B, N)."""
    steps = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return steps - torch.where(starts, steps, 0).cummax(1).values
