"""Model: front end, blocks, norm and head, with an optional encoder or latents. Positions are counted only here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from qkv.frontends.border import check_counts, check_rows
from qkv.frontends.frontend import Frontend, Past, build_frontend
from qkv.layers.branch import Branch
from qkv.layers.context import MEMORY, Context, Memories, Memory
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Observable, Points, check_tap
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.layers.positions import Learned
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder, Tap, TapSequence
from qkv.models.fast.runners import after_runners
from qkv.models.heads.head import build_head
from qkv.models.queries import Queries
from qkv.models.stack.layered import Layered
from qkv.models.stack.segmentation import build_segmentation
from qkv.models.state import Decoded, State
from qkv.spec.model import Encoder as EncoderSpec
from qkv.spec.model import Latents as LatentsSpec
from qkv.spec.model import Model
from qkv.spec.model import Stack as StackSpec
from qkv.spec.model import Tower as TowerSpec
from qkv.spec.parts import Learned as LearnedSpec
from qkv.spec.register import implements
from qkv.state.arrival import Counts
from qkv.state.pages import room_for
from qkv.state.store import slots_for
from qkv.state.tree import cut
from qkv.system.errors import UserError, dotted

Embedded = tuple[Tensor, Context]
AnyTap = TypeVar("AnyTap", bound=Tap)


class Stack(Observable, Layered):
    """Stack of front end, blocks and final norm: a signal of B rows -> vectors (B, N, D)."""

    def __init__(
        self,
        spec: StackSpec,
        width: int,
        table: nn.Parameter | None = None,
        path: str = "",
        memory_width: int | None = None,
    ):
        """Build the stack. ``table``: token embeddings shared with another stack; None to create a table.

        path: prefix of names, such as "encoder.".   memory_width: see ``lay``.
        """
        super().__init__()
        self.assign_name(path.removesuffix("."))
        self.frontend = build_frontend(spec, width, table)
        self.lay(spec, width, f"{path}blocks", memory_width)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.frontend.device

    @property
    def limit(self) -> int | None:
        """Maximum number of positions of a row; None if unlimited."""
        return self.frontend.limit

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size of the input; None if the input does not consist of tokens."""
        return self.frontend.vocab_size

    def points(self) -> Points:
        return {
            "frontend.output": "vectors of the input (B, N, D)",
            "norm.output": "output of the final norm (B, N, D)",
        }

    def embed(
        self, signal: Signal, past: Past | None = None, tap: Tap | None = None, memories: Memories | None = None
    ) -> Embedded:
        """Embed a signal; return (vectors (B, N, D), their context)."""
        x, context = self.frontend.embed(signal, past, tap, memories)
        context.announce(self.name or "", x.shape[1])
        return self.offer(context.tap, "frontend.output", x), context


class Latents(Layered):
    """M learned vectors that read the input through cross-attention (Perceiver, Jaegle et al. 2021).

        m (B, N, Dm) ────────── memory ─┐
        table (M, Dz) ── z (B, M, Dz) ─ blocks ─ norm ─ (B, M, Dz)

    Padding of the input is ignored; latents are never padding.
    """

    def __init__(self, spec: LatentsSpec, width: int, memory_width: int, path: str = ""):
        """Create the latents. ``path``: prefix of names, such as "encoder."."""
        super().__init__()
        self.vectors = Learned(LearnedSpec(), spec.count, width)
        self.lay(spec, width, f"{path}latents.blocks", memory_width)

    def layouts(self) -> Layouts:
        return {"vectors.table": WHOLE}  # not "rows": latents have no order, so tables of different sizes share none

    def forward(self, x: Tensor, context: Context) -> Memory:
        """Run the latents on x (B, N, Dm); return their output vectors as a memory.

        Raises ``UserError`` for packed or masked rows, whose documents the latents would mix.
        """
        wrong = next((name for name in _APART if getattr(context, name) is not None), None)
        if wrong:
            raise UserError(f"latents read whole rows and cannot respect {_APART[wrong]} ({wrong}); leave it out")
        count = len(self.vectors.table)
        steps = torch.arange(count, device=x.device)
        inside = Context(steps[None], tap=context.tap, memories={MEMORY: _memory(x, context.lengths)})
        inside.announce("latents", count)
        z = self.vectors(steps).expand(x.shape[0], -1, -1)
        return _memory(self.norm(self.last(z, inside), inside), None)


class Encoder(Stack):
    """Encoder of an encoder–decoder: front end, blocks and norm."""

    def __init__(self, spec: EncoderSpec, width: int, table: nn.Parameter | None):
        super().__init__(spec, width, table if spec.share_embedding else None, "encoder.")
        self.each_layer = spec.memory == "layers"
        latents = spec.latents
        self.latents = Latents(latents, latents.width or width, width, "encoder.") if latents else None

    def forward(self, signal: Signal | Tensor, tap: Tap | None = None) -> Memory:
        """Encode a source to the memory that cross-attention reads.

        The memory holds the output of the last layer, or the outputs of all layers, after the final norm; with latents,
        their vectors.
        """
        x, context = self.embed(Signal.of(signal), tap=tap)
        layers = [x for x, _ in self.through(x, context)] if self.each_layer else [self.last(x, context)]
        normed = [self.offer(tap, "norm.output", self.norm(x, context)) for x in layers]
        if self.latents is not None:
            return self.latents(normed[-1], context)
        return Memory(tuple(normed), _real(x, context.lengths))


@implements(TowerSpec)
class Tower(Frontend):
    """Front end with a stack of its own: a signal -> vectors (B, M, D) of its output, mapped to the model's width."""

    part: TowerSpec

    def __init__(self, part: TowerSpec, stack: StackSpec, width: int, table: nn.Parameter | None = None):
        super().__init__(part, stack)
        self.tower = Encoder(part.stack, part.stack.width or width, None)
        read, hidden = part.read_width(width), part.hidden
        self.norm = build_norm(part.norm, part.stack.width_of_memory(width))
        self.hidden = Linear(read, hidden, bias=part.bias) if hidden else None
        self.map = Linear(hidden or read, width, bias=part.bias) if part.map else None

    def layouts(self) -> Layouts:
        return {}

    def initialise(self, std: float) -> None:
        self.tower.frontend.initialise(std)

    def check(self, signal: Signal) -> None:
        self.tower.frontend.check(signal)

    def count(self, signal: Signal) -> int:
        latents = self.tower.latents
        count = self.tower.frontend.count(signal) if latents is None else len(latents.vectors.table)
        return (count - self.part.skip) // self.part.merge**2

    def lengths(self, signal: Signal) -> Tensor | None:
        lengths = None if self.tower.latents is not None else self.tower.frontend.lengths(signal)
        return None if lengths is None else (lengths - self.part.skip) // self.part.merge**2

    def cells(self, signal: Signal) -> tuple[int, ...] | None:
        grid = self.tower.frontend.grid(signal)
        if grid is None or grid.leading != self.part.skip or self.tower.latents is not None:
            return None
        return tuple(side // self.part.merge for side in grid.sizes)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return self.tower.frontend.random(rows, length, generator)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x = self.norm(self.tower(signal, context.tap).vectors[-1][:, self.part.skip :], context)
        if self.part.merge > 1:
            x = self._merged(x, signal)
        if self.hidden is not None:
            x = ACTIVATIONS[self.part.activation](self.hidden(x))
        return x if self.map is None else self.map(x)

    def _merged(self, x: Tensor, signal: Signal) -> Tensor:
        """Join r × r neighbours on the grid of x (B, N, D) -> (B, N / r², r² D), both in row-major order."""
        grid = self.tower.frontend.grid(signal)
        assert grid is not None
        (rows, columns), side = grid.sizes, self.part.merge
        blocks = x.unflatten(1, (rows // side, side, columns // side, side)).transpose(2, 3)
        return blocks.flatten(3).flatten(1, 2)


def _memory(x: Tensor, lengths: Tensor | None) -> Memory:
    return Memory((x,), _real(x, lengths))


def _real(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the number of unpadded vectors in each row of x (B, N, D), (B)."""
    return lengths if lengths is not None else torch.full(x.shape[:1], x.shape[1], device=x.device)


_APART = {"segments": "packed documents", "visible": "a table of visible keys", "prefix": "a prefix"}


class Transformer(Stack):
    """Complete model: a signal of B rows -> the head's outputs; a language model: ids (B, N) -> logits (B, N, V).

    A row may be read in several calls that pass the state on, split anywhere: the logits equal those of a single call,
    also for rows of different lengths. With an encoder, ``encode`` the source first and pass its memory, once to
    ``init_state``, or to each call without a state.

    With latents (Perceiver, Jaegle et al. 2021), the blocks read the latents through cross-attention, in one call
    without a state; the input of the blocks is queries or x:

        signal ─ front end ─ x (B, N, Dm) ─ latents ─ z (B, M, Dz) ─ memory of the blocks ─ norm ─ head

    With segmentation, the blocks read a row in segments; see ``qkv.models.stack.segmentation``.
    """

    def __init__(self, spec: Model):
        super().__init__(spec, spec.width, memory_width=spec.memory_width)
        self.spec = spec
        table = self.frontend.table
        self.encoder = Encoder(spec.encoder, spec.encoder_width, table) if spec.encoder else None
        self.latents = (
            Latents(spec.latents, spec.latent_width, spec.frontend_width(spec.width)) if spec.latents else None
        )
        self.segmentation = build_segmentation(spec.segmentation, spec.width) if spec.segmentation else None
        self.queries = Queries(spec.queries, spec.width, spec.context_length) if spec.queries else None
        self.head = build_head(spec.head.beside(spec.memory_width), spec.leaving(spec.width), table)
        self.reads_prefix = spec.reads_prefix
        self.tap: Tap | None = None
        """Tap of every call inside of ``tapped``; None outside."""

    @overload
    def tapped(self, tap: AnyTap, /) -> AbstractContextManager[AnyTap]: ...

    @overload
    def tapped(self, *taps: Tap | str) -> AbstractContextManager[Recorder]: ...

    @contextmanager
    def tapped(self, *taps: Tap | str) -> Iterator[Tap]:
        """Pass all calls inside through ``taps``: forward passes, encoding, and each step of decoding and generation.

        Values pass through the taps in the order given, then through a ``Recorder`` of the points that are given as
        names or paths. Inside of another such block, they pass through its taps first. Yield the recorder, or the tap
        if it is the only one. Decoding makes no native calls inside, and calls modules one by one.

        Raises ``UserError`` for a point that the model does not have.
        """
        recorder = Recorder(*(point for point in taps if isinstance(point, str)))
        listed = [*(tap for tap in taps if not isinstance(tap, str)), *([recorder] if recorder.points else [])]
        tap, before = listed[0] if len(listed) == 1 else TapSequence(*listed), self.tap
        for each in listed:
            check_tap(each, self)
        self.tap = tap if before is None else TapSequence(before, tap)
        try:
            yield recorder if recorder.points or len(listed) != 1 else tap
        finally:
            self.tap = before

    def taps(self, tap: Tap | None) -> Tap | None:
        """Return the tap of a call that is given ``tap``: with that of ``tapped``, if there is one, before it."""
        check_tap(tap, self)
        if self.tap is None or tap is None or tap is self.tap:
            return self.tap if tap is None else tap
        return TapSequence(self.tap, tap)

    def points(self) -> Points:
        return {**super().points(), "head.output": "output of the head, such as logits (B, N, V)"}

    @property
    def every_branch(self) -> list[Branch]:
        """Branches of all stacks: first those of the encoder, latents or segmentation, then those of the model."""
        return [
            *(branch for layered in self._beside for branch in layered.branches),
            *self.branches,
        ]

    @property
    def every_block(self) -> list[nn.Module]:
        """Blocks of all stacks."""
        return [block for layered in (*self._beside, self) for block in layered.blocks]

    def share_losses(self, share: float) -> None:
        """Set the next batch's share of a training step's targets, which weights auxiliary losses of branches."""
        for branch in self.every_branch:
            branch.loss_share = share

    def tallies(self) -> list[Tensor]:
        """Return the tensors in which branches count over the rows of a step."""
        return [tally for branch in self.every_branch for tally in branch.tallies()]

    def after_step(self) -> None:
        """Let branches adapt to the batches of a training step. Call it after the optimiser's step."""
        for branch in self.every_branch:
            branch.after_step()

    @property
    def all_latents(self) -> Latents | None:
        """Latents of the model, or those of its encoder; a model has one of them at most."""
        return self.latents if self.encoder is None else self.encoder.latents

    @property
    def _beside(self) -> list[Layered]:
        """All other stacks of the model: encoder, latents and the inner stack of a segmentation."""
        stacks = (self.encoder, self.all_latents, self.segmentation and self.segmentation.inner)
        return [layered for layered in stacks if layered is not None]

    def recompute_blocks(self, on: bool) -> None:
        """Switch activation checkpointing on or off for all blocks, including encoder, latents and segmentation."""
        for layered in (self, *self._beside):
            layered.recompute = on

    @property
    def rewindable(self) -> bool:
        """True if positions can be dropped from the end of the state, see ``rewind``."""
        apart = self.segmentation is None and not self.spec.place_axes
        return apart and all(branch.rewindable for branch in self.branches)

    def encode(self, signal: Signal | Tensor, tap: Tap | None = None) -> Memory:
        """Run the encoder on a source; return its output, the ``memory`` of other methods."""
        if self.encoder is None:
            raise UserError(
                "the model has no encoder, which reads a source; set model.encoder, or concatenate source and target"
            )
        return self.encoder(signal, self.taps(tap))

    def init_state(
        self,
        batch: int,
        capacity: int | None = None,
        memory: Memory | Memories | None = None,
        pages: bool = False,
    ) -> State:
        """Create an empty decoding state of ``batch`` rows. ``capacity``: fixed number of positions; None to grow.

        ``memory``: output of ``encode``, if the model has an encoder. ``pages``: hold keys and values in pages for
        branches that can read pages (``Branch.reads_pages``); see ``qkv.state.pages``.
        """
        self._needs_decoding()
        if capacity is not None and capacity < 1:
            raise UserError(
                f"a state cannot have a capacity of {capacity} positions; allowed: at least 1, or None to let it grow"
            )
        memories = self._memories(memory)
        for value in memories.values():
            check_rows("the memory", value.lengths.shape[0], "the state", batch)

        blocks = (
            self.begin(batch, capacity, memories, pages)
            if self.segmentation is None
            else self.segmentation.init_state(self, batch, capacity)
        )
        none = Counts((0,) * batch)
        return State(none, Counts((capacity or 0,) * batch), blocks, none, none)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Return the size in bytes of the decoding state of ``batch`` rows after ``length`` positions."""
        if self.segmentation is not None:
            return self.segmentation.state_bytes(self.branches, length, batch)
        return sum(branch.state_bytes(length, batch) for branch in self.walked_branches)

    def room_bytes(self, length: int, batch: int = 1, pages: bool = False) -> int:
        """Return the bytes that the decoding state of ``batch`` rows of up to ``length`` positions allocates.

        The unused part of growing buffers is included. ``pages``: exclude keys and values that ``init_state`` stores in
        pages.
        """
        if self.segmentation is not None:
            return self.state_bytes(self.segmentation.room(length), batch)
        return sum(
            b.state_bytes(slots_for(length), batch) for b in self.walked_branches if not (pages and b.reads_pages)
        )

    def page_bytes(self, length: int) -> int:
        """Return the size in bytes of the pages of a row of ``length`` positions; 0 if no branch reads pages."""
        if self.segmentation is not None:
            return 0
        return sum(branch.state_bytes(room_for(length)) for branch in self.walked_branches if branch.reads_pages)

    def rewind(self, state: State, lengths: Tensor) -> State:
        """Return ``state`` with only the first ``lengths`` (B) positions of each row; both share buffers.

        Raises ``UserError`` if a branch cannot drop positions, see ``rewindable``.
        """
        if not self.rewindable:
            stuck = self.spec.segmentation or next(
                b.spec for b in self.branches if b.spec.place_axes or not b.rewindable
            )
            raise UserError(
                f"the state of {stuck.kind!r} cannot be truncated; keep a copy of it instead (qkv.state.tree.rows)"
            )
        check_counts("lengths", lengths, len(state.positions), None, lengths.device)
        left = Counts.of(lengths)
        if any(not 0 <= length <= seen for length, seen in zip(left, state.positions, strict=True)):
            raise UserError(
                f"a state can only be truncated to positions that it has read: lengths {left.tolist()}, "
                f"positions read {state.positions.tolist()}"
            )
        return state._replace(positions=left, blocks=cut(state.blocks, left))

    def forward(
        self,
        signal: Signal | Tensor,
        state: State | None = None,
        *,
        tap: Tap | None = None,
        memory: Memory | Memories | None = None,
    ) -> tuple[Tensor, State | None]:
        """Return (outputs of the head, next state; None without a state). ``signal``: ids (B, N), or a ``Signal``.

        ``memory``: the encoder's output, for calls without a state; with a state, pass it to ``init_state``.
        """
        signal = Signal.of(signal)
        x, context, state = self._read(signal, state, tap, memory)
        out = self.head.of_rows(x, context.lengths if self.spec.num_outputs is None else None, context)
        return self.offer(context.tap, "head.output", out), state

    def features(
        self,
        signal: Signal | Tensor,
        state: State | None = None,
        *,
        tap: Tap | None = None,
        memory: Memory | Memories | None = None,
    ) -> tuple[Tensor, State | None]:
        """Return (input vectors of the head (B, N, D), next state). N: number of positions, latents or queries."""
        x, _, state = self._read(Signal.of(signal), state, tap, memory)
        return x, state

    @after_runners
    def decode(self, tokens: Sequence[Sequence[int]], state: State) -> Decoded:
        """Read one or more new token ids of each row; return logits and next state."""
        signal = Signal.of_rows(tokens, self.device)
        if self.offers(self.tap, "head.output"):  # of all positions, as in other calls
            outputs, after = self(signal, state)
            return Decoded(signal.unpadded(outputs), after)
        vectors, after = self.features(signal, state)
        assert after is not None
        return Decoded(self.head(signal.unpadded(vectors)[:, None])[:, 0], after)

    def _read(
        self, signal: Signal, state: State | None, tap: Tap | None, memory: Memory | Memories | None
    ) -> tuple[Tensor, Context, State | None]:
        """Return (input vectors of the head, context of the signal's positions, next state)."""
        tap = self.taps(tap)
        if state is None:
            x, context = self.embed(signal, tap=tap, memories=self._memories(memory))
            if context.prefix is not None and self.spec.causal and not self.reads_prefix:
                context = replace(context, prefix=None)  # no mask reads it, and attention is faster without it
            return self.vectors(x, context), context, None
        if memory is not None:
            raise UserError("memory cannot be passed together with a state; pass it to init_state, which reads it once")
        visible = state.prefix if self.reads_prefix else None
        x, context = self.embed(signal, Past(state.positions, state.limit, visible, state.behind), tap)
        x, states = self._normed(x, context, state.blocks)
        prefix = Counts.of(signal.prefix) if self.reads_prefix and signal.prefix is not None else state.prefix
        assert context.arrival is not None
        behind = state.behind if context.behind is None else context.behind
        return x, context, State(context.arrival.after, state.limit, states, prefix, behind)

    def vectors(self, x: Tensor, context: Context) -> Tensor:
        """Run latents, blocks and norm on the front end's x (B, N, D); return the input vectors of the head."""
        if self.latents is not None:
            x, context = self._asking(x, context, self.latents(x, context))
        return self._normed(x, context, None)[0]

    def _normed(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Any]:
        """Run blocks and norm on x (B, N, D); return (input vectors of the head, next state)."""
        if self.segmentation is None:
            y, state = self.read(x, context, state)
        else:
            y, state = self.segmentation(x, context, self, state)
        return self.offer(context.tap, "norm.output", y), state

    def _asking(self, x: Tensor, context: Context, memory: Memory) -> tuple[Tensor, Context]:
        """Return (input of the blocks after the latents, its context): the queries, or x if the model has none.

        memory: output of the latents, which the blocks read by cross-attention. If no blocks follow the latents, return
        the latents.
        """
        if not len(self.blocks):
            (z,) = memory.vectors
            x, context = z, Context(torch.arange(z.shape[1], device=x.device)[None], tap=context.tap)
        elif self.queries is None:
            return x, replace(context, memories={MEMORY: memory})
        else:
            x, context = self.queries(x, context, memory)
        context.announce("", x.shape[1])
        return x, context

    def _needs_decoding(self) -> None:
        if not self.spec.decodes:
            path = self.spec.first_not_decoding()
            advice = self.spec.decoding_advice(path, "use a causal mask, or 'causal | prefix'")
            raise UserError(
                f"{dotted(('model', *path))}: this branch sees later positions, so the model cannot decode one token "
                f"at a time; {advice}"
            )

    def _memories(self, memory: Memory | Memories | None) -> Memories:
        """Return the memories for cross-attention by name.

        Raises ``UserError`` if a memory is missing, or if no branch reads one of those passed.
        """
        by_name = {MEMORY: memory} if isinstance(memory, Memory) else memory or {}
        if self.spec.latents:
            if by_name:
                raise UserError(_NOT_READ)
            return by_name
        read = {branch.memory_name: branch for branch in self.branches if branch.spec.reads_memory}
        missing = next((name for name in read if name not in by_name), None)
        if missing is not None:
            path = dotted(("model", *self.spec.first_branch(lambda branch: branch is read[missing].spec)))
            name = "an encoder's output" if missing == MEMORY else f"the memory {missing!r}"
            raise UserError(f"{path}: this branch reads {name}; encode the source and pass the result as memory")
        if any(name not in read and not self.spec.head.reads_memory for name in by_name):
            raise UserError(_NOT_READ)
        return by_name


_NOT_READ = "the model has no branch that reads a memory; leave the memory out"
