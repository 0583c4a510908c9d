"""What is under test, a single branch or a whole stack, behind one face: ``whole`` at once, ``call`` with a state."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from tests.contracts import gated_references as _registers_loops_of_gates  # noqa: F401
from tests.contracts import graph_references as _registers_loops_of_graphs  # noqa: F401
from tests.contracts import matrix_references as _registers_loops_of_matrices  # noqa: F401
from tests.contracts import mixing_references as _registers_its_loops  # noqa: F401
from tests.contracts import relative_references as _registers_its_loops_too  # noqa: F401
from tests.contracts import sparse_references as _registers_its_loops_as_well  # noqa: F401
from tests.contracts import stack_reference
from tests.contracts.memory_references import MEMORY_REFERENCES
from tests.contracts.references import REFERENCES
from tests.contracts.samples import VOCABULARY, WIDTH
from torch import Tensor, nn

from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.norms import BatchNorm
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.spec import masks
from qkv.spec.branches import Attention, Branch, Masked
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Model
from qkv.spec.models.segmentation import Segmentation
from qkv.spec.parts import ByLength, Rope
from qkv.state import tree
from qkv.state.arrival import Arrival, Counts

REAL = 3
"""How many vectors of a memory are real."""


class Counted(NamedTuple):
    """A branch's state with the count that its stack would keep."""

    positions: Counts
    inner: Any


class Subject:
    """Float64 by default, so that agreement can be asked for to the last digits."""

    module: nn.Module
    rewindable: bool
    before = 0
    """Positions that every row has read before its first."""
    unasked: tuple[str, ...] = ()
    """Checks that do not apply."""
    apart: tuple[int, ...] = ()
    """Positions whose output says nothing of their own input."""

    reads_far = True
    """False if no branch ever reads more than a few positions at once, as in short segments."""
    tap: Tap | None = None
    """Tap of all calls."""

    exact_length: int | None = None
    """The longest row of which decoding gives what reading at once does; None for any."""

    @property
    def reads_input(self) -> bool:
        """False if the output says nothing of the input."""
        return True

    def exact(self) -> Subject:
        """The same weights in a form that computes at once what decoding does, at every length."""
        return self

    def decoded(self, x: Tensor) -> Tensor:
        """What decoding must give, however it is cut."""
        return self.exact().whole(x)

    def inputs(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """(B, N, D) or ids (B, N)."""
        raise NotImplementedError

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def start(self, batch: int, capacity: int | None = None) -> Any:
        raise NotImplementedError

    def call(self, x: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def rewind(self, state: Any, lengths: Tensor) -> Any:
        raise NotImplementedError

    def remembered(self, state: Any) -> Any:
        """What ``state_bytes`` speaks of: all but what is kept of a memory."""
        raise NotImplementedError

    def equation(self, x: Tensor) -> Tensor:
        """What loops over single positions give."""
        raise NotImplementedError

    def state_bytes(self, length: int, batch: int) -> int:
        return self.module.state_bytes(length, batch)  # type: ignore[operator]


def exact_form(part: Branch) -> Branch:
    """The part that decoding computes."""
    if part.exactness.length is None:
        return part
    if isinstance(part, HyperAttention):
        return part.changed(exact_up_to=1 << 20)
    relative = getattr(part, "relative", None)
    if isinstance(relative, Rope) and isinstance(relative.scaling, ByLength):
        return part  # the rows of random models end before decoding differs
    assert isinstance(part, LSHAttention), f"say here what decoding of {part.kind!r} computes"
    return part.changed(chunk_length=1 << 20)


class OneBranch(Subject):
    """A branch, its contexts written by hand: an oracle for the stack that writes them otherwise."""

    def __init__(self, part: Branch, dtype: torch.dtype = torch.float64):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.module = scrambled(build_branch(part, WIDTH), dtype)
        self.part, self.dtype, self.rewindable = part, dtype, self.module.rewindable
        # Where no position sees itself, the second sees the first alone.
        self.apart = (1,) if part.kind == "lsh_attention" else ()
        if isinstance(part, Attention) and part.top_k and part.norms_heads and part.dims(WIDTH)[0] == 1:
            # The norm of one feature makes all keys equal: those of the first positions are read.
            self.apart = tuple(range(part.top_k, 100))

        self.exact_length = part.exactness.length

    def exact(self) -> Subject:
        part = exact_form(self.part)
        return self if part is self.part else OneBranch(part, self.dtype)

    def inputs(self, batch: int, length: int, seed: int = 0) -> Tensor:
        return torch.randn(batch, length, WIDTH, dtype=self.dtype, generator=torch.Generator().manual_seed(seed))

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        positions = torch.arange(x.shape[1])[None]
        if segments is not None:
            positions = torch.tensor([[row[:i].count(row[i]) for i in range(len(row))] for row in segments.tolist()])
        memories = {MEMORY: self._memory(x.shape[0])} if self.part.reads_memory else {}
        return self.module(x, Context(positions, lengths, segments, memories=memories, tap=self.tap))[0]

    def _memory(self, batch: int) -> Memory:
        """The same for every row, so that a row alone can stand for it: three vectors, and two of junk behind them."""
        vectors = torch.randn(1, REAL + 2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(21))
        vectors[:, REAL:] *= 50
        return Memory((vectors.repeat(batch, 1, 1).to(self.dtype),), torch.full((batch,), REAL))

    @property
    def reads_input(self) -> bool:
        return self.part.kind != "fixed_context"

    def start(self, batch: int, capacity: int | None = None) -> Counted:
        known = {"memory": self._memory(batch)} if self.part.reads_memory else {}
        return Counted(Counts((0,) * batch), self.module.init_state(batch, capacity, **known))

    def call(self, x: Tensor, state: Counted, lengths: Tensor | None = None) -> tuple[Tensor, Counted]:
        past, count = torch.tensor(state.positions), x.shape[1]
        context = Context(
            past[:, None] + torch.arange(count),
            lengths,
            arrival=Arrival(state.positions, count, lengths),
            tap=self.tap,
        )
        y, inner = self.module(x, context, state.inner)
        return y, Counted(Counts.of(past + (count if lengths is None else lengths)), inner)

    def rewind(self, state: Counted, lengths: Tensor) -> Counted:
        return Counted(Counts.of(lengths), tree.cut(state.inner, Counts.of(lengths)))

    def remembered(self, state: Counted) -> Any:
        return () if self.part.reads_memory else state.inner

    def equation(self, x: Tensor) -> Tensor:
        if not self.part.reads_memory:
            return REFERENCES[self.part.kind](self.module, x)
        (vectors,), _ = self._memory(x.shape[0])
        return MEMORY_REFERENCES[self.part.kind](self.module, x, [row[:REAL] for row in vectors])


class Stack(Subject):
    """A whole model; inputs are ids, outputs logits."""

    tokens = VOCABULARY
    """Inputs are ids below it."""

    def __init__(self, spec: Model, dtype: torch.dtype = torch.float64):
        self.module = scrambled(build(spec), dtype)
        self.rewindable = self.module.rewindable
        lengths = (b.exactness.length for layer in spec.layers for b in layer.branches if b.exactness.length)
        self.exact_length = min(lengths, default=None)
        self.reads_far = spec.segmentation is None or spec.segmentation.positions_read(1100) > 100
        if spec.segmentation and self.exact_length is not None:
            self.exact_length = longest_read(spec.segmentation, self.exact_length)

    def exact(self) -> Stack:
        if self.exact_length is None:
            return self
        other, spec = copy.copy(self), self.module.spec
        blocks = tuple(block.changed(branches=tuple(map(exact_form, block.branches))) for block in spec.blocks)  # type: ignore[union-attr]
        other.module = build(spec.changed(blocks=blocks)).to(next(self.module.parameters()).dtype).eval()  # type: ignore[union-attr]
        other.module.load_state_dict(self.module.state_dict())
        return other

    def inputs(self, batch: int, length: int, seed: int = 0) -> Tensor:
        return torch.randint(self.tokens, (batch, length), generator=torch.Generator().manual_seed(seed))

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        return self.module(Signal(x, lengths=lengths, segments=segments))[0]

    def start(self, batch: int, capacity: int | None = None) -> Any:
        return self.module.init_state(batch, capacity)

    def call(self, x: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.module(Signal(x, lengths), state)

    def rewind(self, state: Any, lengths: Tensor) -> Any:
        return self.module.rewind(state, lengths)

    def remembered(self, state: Any) -> Any:
        return state.blocks

    def equation(self, x: Tensor) -> Tensor:
        return stack_reference.model(self.module, x)


def longest_read(part: Segmentation, most: int) -> int | None:
    """The longest row of whose segments the blocks read at most so many positions; None for any."""
    if part.positions_read(10**6) <= most:
        return None
    return max((n for n in range(most + 1) if part.positions_read(n) <= most), default=0)


class EncoderDecoder(Stack):
    """A model that reads a memory; the source is the same for every row and padded."""

    SOURCE = (3, 1, 4, 1, 5, 2, 2)

    def _memory(self, batch: int) -> Memory:
        return self.module.encode(Signal(torch.tensor([self.SOURCE] * batch), lengths=torch.full((batch,), REAL + 2)))  # type: ignore[operator]

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        return self.module(Signal(x, lengths=lengths, segments=segments), memory=self._memory(x.shape[0]))[0]

    def start(self, batch: int, capacity: int | None = None) -> Any:
        return self.module.init_state(batch, capacity, self._memory(batch))  # type: ignore[operator]

    def remembered(self, state: Any) -> Any:
        blocks = zip(state.blocks, self.module.spec.layers, strict=True)  # type: ignore[arg-type,union-attr]
        return [
            [s for s, part in zip(states, block.branches, strict=True) if not part.reads_memory]
            for states, block in blocks
        ]

    def equation(self, x: Tensor) -> Tensor:
        return stack_reference.model(self.module, x, [list(self.SOURCE[: REAL + 2])] * x.shape[0])


class PrefixDecoder(Stack):
    """A model whose rows begin with a prefix that sees all of itself; cuts, padding and going back come after it."""

    PREFIX = (3, 1, 4, 1)
    before = len(PREFIX)
    unasked = ("packed documents",)

    def __init__(self, spec: Model, dtype: torch.dtype = torch.float64):
        super().__init__(spec, dtype)
        if self.exact_length is not None:
            self.exact_length = max(0, self.exact_length - self.before)

    def _joined(self, x: Tensor) -> Tensor:
        return torch.cat((torch.tensor([self.PREFIX] * x.shape[0], dtype=torch.long).view(-1, self.before), x), 1)

    def _prefix(self, batch: int) -> Tensor:
        return torch.full((batch,), self.before)

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        known = None if lengths is None else lengths + self.before
        return self.module(Signal(self._joined(x), lengths=known, prefix=self._prefix(x.shape[0])))[0][:, self.before :]

    def start(self, batch: int, capacity: int | None = None) -> Any:
        state = self.module.init_state(batch, None if capacity is None else capacity + self.before)  # type: ignore[operator]
        nothing = torch.zeros(batch, 0, dtype=torch.long)
        return self.module(Signal(self._joined(nothing), prefix=self._prefix(batch)), state)[1]

    def rewind(self, state: Any, lengths: Tensor) -> Any:
        return super().rewind(state, lengths + self.before)

    def state_bytes(self, length: int, batch: int) -> int:
        return super().state_bytes(length + self.before, batch)

    def equation(self, x: Tensor) -> Tensor:
        known = copy.deepcopy(self.module)
        for branch in known.branches:  # type: ignore[union-attr]
            if isinstance(branch.spec, Masked):
                branch.spec = branch.spec.changed(mask=of_length(branch.spec.mask, self.before))
        return stack_reference.model(known, self._joined(x))[:, self.before :]


def of_length(mask: masks.Mask, length: int) -> masks.Mask:
    """``mask`` with a prefix of so many positions in the place of the row's own."""
    if isinstance(mask, masks.AllOf | masks.AnyOf):
        return mask.changed(masks=tuple(of_length(inner, length) for inner in mask.masks))
    return mask.changed(length=length) if isinstance(mask, masks.Prefix) and mask.length is None else mask


def whole_model(spec: Model, dtype: torch.dtype = torch.float64) -> Stack:
    """The subject that suits the form of a model."""
    kind = EncoderDecoder if spec.encoder else PrefixDecoder if spec.reads_prefix else Stack
    return kind(spec, dtype)


def scrambled(module: nn.Module, dtype: torch.dtype) -> Any:
    """Weights and running statistics away from their special initial values (0 and 1), so that each of them matters."""
    generator = torch.Generator().manual_seed(11)
    for p in module.parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.data += noise * (p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3)
    for norm in module.modules():
        if isinstance(norm, BatchNorm):
            norm.running_mean.normal_(generator=generator)
            norm.running_var.uniform_(0.5, 2.0, generator=generator)
    return module.to(dtype).eval()
