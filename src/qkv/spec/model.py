"""Specs of models: a front end, a stack of blocks and a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from qkv.spec.base import Seq, Spec
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.errors import Problem
from qkv.spec.frontends import WIDEST, Frontend, Text
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import Full
from qkv.spec.models.blocks import MOST_LAYERS, Block, Layered
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.segmentation import Segmentation
from qkv.spec.parts import Activation, Learned, NoNorm, Norm, Positions, grid_problems
from qkv.spec.processors import Processor
from qkv.spec.register import import_all

import_all("qkv.spec.signals")  # registers their kinds in the slots of front ends and processors


class Reader(Spec):
    """Base class of specs that read an input signal through a front end (token table, image patches, audio)."""

    context_length: int = Field(
        default=256, gt=0, description="longest sequence in training; the size of a learned position table"
    )
    frontend: Frontend = Text()

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size V; None until the tokenizer is known."""
        return self.frontend.num_tokens

    @property
    def position_limit(self) -> int | None:
        """Maximum number of positions of a row, such as the rows of a position table; None if unlimited."""
        return self.frontend.limit(self.context_length)

    def frontend_width(self, width: int) -> int:
        """Return the width of the front end's vectors in a model of ``width`` features."""
        return self.frontend.own_width(width)


class Stack(Layered, Reader):
    """A front end followed by ``num_layers`` blocks (repeating the listed ones cyclically) and a final norm.

    With ``rounds`` the layers are applied several times with the same weights (Universal Transformer, Dehghani et al.
    2019; ALBERT, Lan et al. 2020).
    """

    rounds: int = Field(default=1, gt=0, le=1000, description="repetitions of the layers, with shared weights")

    @property
    def walk(self) -> tuple[int, ...]:
        return (*range(self.depth),) * self.rounds

    @property
    def row_positions(self) -> int:
        return self.frontend.num_positions or self.context_length

    @property
    def rows_known(self) -> bool:
        return self.frontend.num_positions is not None or self.frontend.processor is None

    @property
    def grid(self) -> tuple[int, ...] | None:
        return self.frontend.grid

    @property
    def grid_axes(self) -> int:
        return self.frontend.grid_axes

    @property
    def position_limit(self) -> int | None:
        stack_limit, branch = super().position_limit, self.limiting_branch
        return min((limit for limit in (stack_limit, branch and branch.longest_row) if limit is not None), default=None)

    def types_read(self, types: Sequence[int]) -> list[int]:
        """Return token types (segment ids), clipped to the number that the front end embeds; empty if none are read."""
        count = self.frontend.num_types
        if count:
            return [min(kind, count - 1) for kind in types]
        return list(types) if self.reads_types else []

    def stack_problems(self, width: int, frontend_width: int | None = None) -> list[Problem]:
        """Return the errors in the stack's settings for ``width`` features; empty if none.

        ``frontend_width``: required features of the front end's vectors if latents read them; default: ``width``.
        """
        problems, size = self.block_problems(width) + self._rounds_problems(), self.frontend_width(width)
        if size != (frontend_width or width):
            sentence = (
                f"the blocks read vectors of {width} features, not of {size}; leave it out, or give model.latents, "
                "which read any width"
            )
            problems.append(Problem(("frontend", "width"), sentence))
        return [*problems, *self.frontend.width_problems(size)]

    def _rounds_problems(self) -> list[Problem]:
        if self.rounds * self.depth <= MOST_LAYERS:
            return []
        sentence = f"{self.rounds} rounds of {self.depth} layers are more than {MOST_LAYERS} in all; give fewer"
        return [Problem(("rounds",), sentence)]


_ENCODER_BLOCK = Block(branches=(Attention(mask=Full()), FeedForward()))
_READING_BLOCK = Block(branches=(CrossAttention(), FeedForward()))


class Latents(Layered):
    """M learned latent vectors that attend to the N input vectors in O(N M) (Perceiver, Jaegle et al. 2021).

    Cross branches of the latents' blocks read the front end's vectors, self-attention is between the M latents, and the
    model's own blocks read the result. Each listed cross branch has its own weights; ``rounds`` repeat them with shared
    weights, as in the paper.
    """

    count: int = Field(default=64, gt=0, le=WIDEST, description="number of latents, M")
    width: int | None = Field(default=None, gt=0, le=WIDEST, description="width of the latents; default: the model's")
    blocks: Seq[Block] = Field(default=(_READING_BLOCK, _ENCODER_BLOCK), min_length=1)
    rounds: int = Field(default=1, gt=0, le=1000, description="repetitions of the layers, with shared weights")
    once: int = Field(default=0, ge=0, description="number of first layers applied once, before the rounds")

    @property
    def row_positions(self) -> int:
        return self.count

    @property
    def walk(self) -> tuple[int, ...]:
        """Index of the block applied at each layer, in order: blocks applied once, then the others once per round."""
        count = self.depth
        return (*range(self.once), *[*range(self.once, count)] * self.rounds)

    def problems(self) -> list[Problem]:
        if self.once >= self.depth:
            return [
                Problem(
                    ("once",),
                    f"{self.once} layers are applied once, and none of {self.depth} is left for rounds; give fewer",
                )
            ]
        if self.rounds * self.depth <= MOST_LAYERS:
            return []
        return [
            Problem(
                ("rounds",),
                f"{self.rounds} rounds of {self.depth} layers are more than {MOST_LAYERS} in all; give fewer",
            )
        ]


class Encoder(Stack):
    """Encoder of an encoder–decoder, whose output cross-attention reads, or of one of two inputs that are matched."""

    width: int | None = Field(default=None, gt=0, le=WIDEST, description="width of the encoder; default: the model's")
    blocks: Seq[Block] = Field(default=(_ENCODER_BLOCK,), min_length=1)
    memory: Literal["last", "layers"] = Field(
        default="last",
        description="last: every layer reads the final output; layers: layer i reads the output of encoder layer i",
    )
    share_embedding: bool = Field(default=False, description="one table of token embeddings for source and target")
    latents: Latents | None = Field(
        default=None,
        description="latents that read the output and take its place as memory, a resampler (Flamingo, Alayrac et al. "
        "2022); default: none",
    )

    def width_of_memory(self, width: int) -> int:
        """Return the width of the output in a model of ``width`` features."""
        width = self.width or width
        return width if self.latents is None else self.latents.width or width


def resampler_problems(encoder: Encoder, width: int) -> list[Problem]:
    """Return the errors in the latents that read the output of an encoder of ``width`` features; empty if none."""
    latents = encoder.latents
    if latents is None:
        return []
    problems = [problem.under("latents") for problem in latents.block_problems(latents.width or width)]
    if encoder.memory == "layers":
        problems.append(Problem(("latents",), "they read the last output only; use memory: last, or leave them out"))
    if not latents.reads_memory:
        sentence = f"no branch of these blocks reads the encoder's output; list one of {_memory_kinds()}"
        problems.append(Problem(("latents", "blocks"), sentence))
    return problems


class Tower(Frontend, kind="tower"):
    """Front end with a stack of its own, whose output x is mapped to the model's width (LLaVA, Liu et al. 2023).

    y = W norm(x) + b, or with ``hidden`` y = W φ(W_h norm(x) + b_h) + b, at each position of x or for each of its
    latents. It reads what the front end of the stack reads. ``merge`` r joins the normed vectors of r × r neighbouring
    patches to one, row by row (pixel shuffle; Idefics 3, Laurençon et al. 2024).
    """

    stack: Encoder = Encoder()
    skip: int = Field(default=0, ge=0, le=2000, description="first vectors of x that are left out, as a class token")
    merge: int = Field(default=1, ge=1, le=64, description="r: neighbouring patches that are joined, r × r to one")
    map: bool = Field(default=True, description="map x; false: x has the model's width already")
    hidden: int | None = Field(default=None, gt=0, le=WIDEST, description="features of a layer before; default: none")
    activation: Activation = "gelu"
    bias: bool = True
    norm: Norm = NoNorm()

    @property
    def processor(self) -> type[Processor] | None:  # type: ignore[override]
        """Spec class of the processor of the stack's front end; None for text."""
        return self.stack.frontend.processor

    @property
    def reads_whole_rows(self) -> bool:
        return True

    @property
    def num_positions(self) -> int | None:
        latents = self.stack.latents
        count = self.stack.frontend.num_positions if latents is None else latents.count
        return None if count is None else (count - self.skip) // self.merge**2

    def positions_of(self, size: int) -> int:
        return self.num_positions or (self.stack.frontend.positions_of(size) - self.skip) // self.merge**2

    def read_width(self, width: int) -> int:
        """Return the number of features of the vectors that the map reads, in a model of ``width`` features."""
        return self.stack.width_of_memory(width) * self.merge**2

    def fitted(self, processor: Processor) -> Self:
        return self.changed(stack=self.stack.changed(frontend=self.stack.frontend.fitted(processor)))

    def unsized(self) -> Self:
        return self.changed(stack=self.stack.changed(frontend=self.stack.frontend.unsized()))

    def width_problems(self, width: int) -> list[Problem]:
        stack, size = self.stack, self.read_width(width)
        inside = stack.stack_problems(stack.width or width) + resampler_problems(stack, stack.width or width)
        problems = [problem.under("frontend", "stack") for problem in inside]
        if not self.map and size != width:
            sentence = f"the stack gives {size} features and the model has {width}; set it to true"
            problems.append(Problem(("frontend", "map"), sentence))
        return problems

    def problems(self) -> list[Problem]:
        for name, value in (("memory", self.stack.memory != "last"), ("share_embedding", self.stack.share_embedding)):
            if value:
                sentence = "a tower gives its last output and has tables of its own; leave the key out"
                return [Problem(("stack", name), sentence)]
        grid = getattr(self.stack.frontend, "grid", None)
        plain = self.stack.latents is None and self.skip == self.stack.frontend.leading
        if self.merge > 1 and not (plain and self.stack.frontend.on_grid):
            sentence = "only patches of pictures have neighbours; leave out their leading vectors (skip), or the key"
            return [Problem(("merge",), sentence)]
        if grid is not None and any(side % self.merge for side in grid):
            rows = " × ".join(map(str, grid))
            return [Problem(("merge",), f"{self.merge} given, but the {rows} patches of a picture do not divide so")]
        return []


class Queries(Spec):
    """Output queries, made of position embeddings only, with which the model's own blocks read latents.

    Perceiver IO, Jaegle et al. 2022.
    """

    count: int | None = Field(default=None, gt=0, description="queries per row; default: one per input position")
    positions: Positions = Learned()

    def problems(self) -> list[Problem]:
        if not self.positions.absent:
            return []
        return [
            Problem(("positions",), "queries consist of positions only; give learned, sinusoidal or learned_sinusoidal")
        ]


class WithWidth(Spec):
    """Base class of specs with a model width D."""

    width: int = Field(default=128, gt=0, le=WIDEST, description="features per position, D")


class Model(Stack, WithWidth):
    """Complete model: front end, blocks, final norm and head; with ``encoder`` an encoder–decoder.

    With ``latents`` (Perceiver), the latents read the front end's vectors, and the stack's cross branches read the
    latents. The input of the stack's blocks is ``queries``, by default the front end's vectors. Without blocks the head
    reads the latents. With ``segmentation`` the blocks read each row in segments; see the kinds of ``Segmentation``.
    """

    encoder: Encoder | None = Field(default=None, description="encoder of the source; default: none")
    latents: Latents | None = Field(default=None, description="latents that read the input; default: none")
    queries: Queries | None = Field(
        default=None, description="queries that read the latents; default: the front end's vectors"
    )
    segmentation: Segmentation | None = Field(
        default=None,
        description="how a row is read in segments or at several scales; default: the whole row as it is",
    )
    head: Head = LanguageModelHead()
    init_std: float = Field(
        default=0.02,
        gt=0,
        description="initial standard deviation of weights; for output projections, divided by √(number of branches)",
    )

    @property
    def tied(self) -> bool:
        """True if the head shares the token embedding table."""
        return self.head.shares_table

    @property
    def position_limit(self) -> int | None:
        stack_limit = super().position_limit
        if self.queries is None or self.queries.count is not None:
            return stack_limit
        query_limit = self.queries.positions.limit(self.context_length)  # one query per position
        return min((limit for limit in (stack_limit, query_limit) if limit is not None), default=None)

    @property
    def row_positions(self) -> int:
        if self.segmentation:
            return self.segmentation.row_positions
        return (self.queries and self.queries.count) or super().row_positions

    @property
    def rows_known(self) -> bool:
        return bool(self.segmentation or (self.queries and self.queries.count)) or super().rows_known

    @property
    def grid(self) -> tuple[int, ...] | None:
        return None if self.queries and self.queries.count else super().grid

    @property
    def grid_axes(self) -> int:
        return 1 if self.queries and self.queries.count else super().grid_axes

    @property
    def limiting_branch(self) -> Branch | None:
        return None if self.segmentation or (self.queries and self.queries.count) else super().limiting_branch

    @property
    def causal(self) -> bool:
        return self.latents is None and not self.frontend.reads_whole_rows and super().causal

    @property
    def decodes(self) -> bool:
        return self.latents is None and not self.frontend.reads_whole_rows and super().decodes

    def first_not_decoding(self) -> tuple[str | int, ...]:
        if self.frontend.reads_whole_rows:
            return ("frontend",)
        return ("latents",) if self.latents else super().first_not_decoding()

    def first_inexact(self, length: int) -> tuple[tuple[str | int, ...], Branch | None]:
        return super().first_inexact(self.segmentation.positions_read(length) if self.segmentation else length)

    @property
    def latent_width(self) -> int:
        """Width of the latents; by default the model's width."""
        return (self.latents and self.latents.width) or self.width

    @property
    def encoder_width(self) -> int:
        """Width of the encoder; by default the model's width."""
        return (self.encoder and self.encoder.width) or self.width

    @property
    def memory_width(self) -> int:
        """Width of the vectors that cross-attention reads: of the latents, or of the encoder."""
        return self.latent_width if self.encoder is None else self.encoder.width_of_memory(self.width)

    @property
    def num_outputs(self) -> int | None:
        """Fixed number of vectors per row that the head reads; None: one per position."""
        if self.latents and not self.blocks:
            return self.latents.count
        return self.queries and self.queries.count

    def problems(self) -> list[Problem]:
        reading = self.frontend_width(self.width) if self.latents else None
        asking = self.queries.positions.width_problems(self.width) if self.queries else []
        asking += grid_problems(self.queries.positions, self.grid_axes) if self.queries else []
        return self._stage_problems() or [
            *self.stack_problems(self.width, reading),
            *(p.under("queries", "positions") for p in asking),
            *self._tied_problems(),
            *self._length_problems(),
            *(problem.under("head") for problem in self.head.memory_problems(self.memory_width)),
            *(self._latent_problems() if self.latents else self._memory_problems()),
            *self._stream_problems(),
            *self._segmentation_problems(),
        ]

    def _length_problems(self) -> list[Problem]:
        predicts = self.head.predicts_tokens or self.head.classes != 0 or self.head.pairs_positions
        if not (self.frontend.lengthens and self.head.per_position and predicts):
            return []
        sentence = f"the head {self.head.kind!r} has an output for each token, not for what fills a row; leave it out"
        return [Problem(("frontend", "fill"), sentence)]

    def _stage_problems(self) -> list[Problem]:
        """Return the errors if blocks merge neighbours but another part reads their vectors; empty if none."""
        stacks = {"encoder": self.encoder, "latents": self.latents}
        inside = next((name for name, stack in stacks.items() if stack is not None and stack.merges), None)
        if inside is not None:
            return [Problem((inside, "blocks"), "only the model's own blocks may merge neighbours; leave merge out")]
        if not self.merges:
            return []
        for name in ("encoder", "latents", "queries", "segmentation"):
            if getattr(self, name) is not None:
                return [Problem((name,), "the model's blocks merge neighbours on a grid; leave it or the merges out")]
        if self.rounds > 1:
            return [Problem(("rounds",), "blocks that merge neighbours are applied once; leave it out")]
        if self.frontend.leading:
            sentence = "positions before the grid, such as a class token, cannot be merged; leave them out"
            return [Problem(("frontend",), sentence)]
        return []

    def _latent_problems(self) -> list[Problem]:
        assert self.latents is not None
        problems = [p.under("latents") for p in self.latents.block_problems(self.latent_width)]
        if self.encoder:
            problems.append(
                Problem(("encoder",), "the blocks read either latents or an encoder's output; leave one of them out")
            )
        for stack, path in ((self.latents, ("latents", "blocks")), (self, ("blocks",))):
            if stack.blocks and not stack.reads_memory:
                read = "the input" if path[0] == "latents" else "the latents"
                problems.append(Problem(path, f"no branch of these blocks reads {read}; list one of {_memory_kinds()}"))
        if self.queries and not self.blocks:
            problems.append(
                Problem(("queries",), "the model has no blocks that read them; list one, or leave the queries out")
            )
        if not self.blocks and self.latent_width != self.width:
            sentence = (
                f"the head reads the latents, so their width must be the model's, {self.width}, not {self.latent_width}"
            )
            problems.append(Problem(("latents", "width"), sentence))
        if self.blocks and not self.queries and self.frontend_width(self.width) != self.width:
            sentence = (
                "the blocks read these vectors, so their width must be the model's; leave it out, or give queries"
            )
            problems.append(Problem(("frontend", "width"), sentence))
        if self.num_outputs and self.head.per_position:
            sentence = (
                f"a head of the kind {self.head.kind!r} needs one vector per position, "
                f"but reads {self.num_outputs} vectors per row; "
            )
            problems.append(Problem(("head",), sentence + "list a block, and leave queries.count out"))
        return problems

    def _segmentation_problems(self) -> list[Problem]:
        """Return the errors if the blocks read segments but another part reads or replaces the row; empty if none."""
        if self.segmentation is None:
            return []
        if self.frontend.on_grid:
            sentence = (
                f"{self.frontend.kind!r} has positions on a grid, but {self.segmentation.kind!r} reads a sequence"
            )
            return [Problem(("frontend",), f"{sentence}; use a front end of sequences, or leave the segmentation out")]
        if self.rounds > 1:
            return [Problem(("rounds",), f"{self.segmentation.kind!r} applies the blocks once; leave it out")]
        for name in ("encoder", "latents", "queries"):
            if getattr(self, name) is not None:
                sentence = f"the blocks of {self.segmentation.kind!r} read only segments of the row; leave it out"
                return [Problem((name,), sentence)]
        return self.segmentation.problems_with(self, self.width)

    def _tied_problems(self) -> list[Problem]:
        """Return the errors if the head or the encoder shares the token embedding table; empty if none."""
        problems, size = list[Problem](), self._table_width(self, self.width)
        if not self.frontend.reads_tokens and self.head.predicts_tokens:
            sentence = (
                f"a language model predicts tokens, but the front end {self.frontend.kind!r} reads none; "
                "give another head"
            )
            problems.append(Problem(("head",), sentence))
        read = self.head.table_width(self.width)
        if self.tied and size not in (None, read):
            sentence = (
                f"a tied head needs token embeddings of width {read}, but they have {size} features; set it to false"
            )
            problems.append(Problem(("head", "tied"), sentence))
        if not self.encoder or not self.encoder.share_embedding:
            return problems
        path, other = ("encoder", "share_embedding"), self._table_width(self.encoder, self.encoder_width)
        if size != other:
            problems.append(
                Problem(
                    path,
                    f"token embeddings have {other} features in the source and {size} in the target; set it to false",
                )
            )
        if None not in (self.vocab_size, self.encoder.vocab_size) and self.vocab_size != self.encoder.vocab_size:
            sizes = f"of {self.encoder.vocab_size} and {self.vocab_size} tokens"
            problems.append(
                Problem(
                    path, f"source and target have vocabularies {sizes}, but a shared table needs one; set it to false"
                )
            )
        return problems

    def _table_width(self, stack: Stack, width: int) -> int | None:
        """Return the width of the token embeddings of ``stack``; None if it reads no tokens."""
        return stack.frontend.table_width(width)

    def _stream_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.tied and self.reversible:
            sentence = (
                "the head reads two streams, twice as wide as token embeddings, so it cannot be tied; set it to false"
            )
            problems.append(Problem(("head", "tied"), sentence))
        if self.encoder is not None and self.encoder.reversible:
            sentence = (
                "a reversible encoder has two streams, twice as wide as the memory that cross branches read; "
                "use another residual"
            )
            problems.append(Problem(("encoder", "blocks"), sentence))
        if self.latents is not None and (self.reversible or self.latents.reversible):
            problems.append(
                Problem(
                    ("latents",),
                    "latents have one stream and reversible blocks two; use another residual, or no latents",
                )
            )
        return problems

    def _memory_problems(self) -> list[Problem]:
        encoder, reader = self.encoder, self.first_branch(lambda branch: branch.reads_memory)
        if self.queries:
            return [
                Problem(("queries",), "there are no latents for them to read; give model.latents, or leave them out")
            ]
        if encoder is None and self.head.reads_memory:
            sentence = f"missing; a head of the kind {self.head.kind!r} reads its output beside that of the blocks"
            return [Problem(("encoder",), sentence)]
        if encoder is None:
            sentence = "this branch reads an encoder's output, but the model has no encoder; give model.encoder"
            return [Problem(reader, sentence)] if reader else []
        problems = [p.under("encoder") for p in encoder.stack_problems(self.encoder_width)]
        problems += [p.under("encoder") for p in resampler_problems(encoder, self.encoder_width)]
        if not reader and not self.head.reads_memory:
            problems.append(
                Problem(
                    ("encoder",),
                    f"no branch of the model's blocks reads the encoder's output; list one of {_memory_kinds()}",
                )
            )
        inner = encoder.first_branch(lambda branch: branch.reads_memory)
        if inner:
            problems.append(
                Problem(
                    ("encoder", *inner), "the encoder has no memory to read; move this branch to the model's own blocks"
                )
            )
        if encoder.memory == "layers" and max(encoder.rounds, self.rounds) > 1:
            sentence = "layer i reads encoder layer i, but rounds apply each layer repeatedly; use 'last', or one round"
            problems.append(Problem(("encoder", "memory"), sentence))
        elif encoder.memory == "layers" and encoder.depth != self.depth:
            counts = f"the encoder has {encoder.depth} and the model {self.depth}"
            problems.append(
                Problem(
                    ("encoder", "memory"), f"layer i reads encoder layer i, so both need equally many layers; {counts}"
                )
            )
        return problems


def _memory_kinds() -> str:
    return ", ".join(sorted(kind for kind, part in Branch.kinds().items() if part.reads_memory))
