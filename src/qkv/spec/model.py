"""What a model is: a front end, a stack of blocks and a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from qkv.spec import lsh_attention, relative_attention, sparse_attention
from qkv.spec.base import Seq, Spec
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.cross import CrossAttention, MemoryBranch
from qkv.spec.errors import Problem
from qkv.spec.frontends import WIDEST, Frontend, Text
from qkv.spec.heads import Head, LanguageModelHead, SpanHead, TokenHead
from qkv.spec.masks import Full
from qkv.spec.parts import Add, BatchNorm, LayerNorm, Learned, NoPositions, NoResidual, Norm, Positions, Residual, Reversible

MORE_BRANCHES = (lsh_attention, relative_attention, sparse_attention)
"""Modules whose branches a block may list beside those named here; importing them registers these."""


MOST_LAYERS = 10_000
"""Of one stack, rounds included; published models have a thousand at most."""


class Block(Spec):
    """A list of residual branches and an order.

    pre        x + f(norm x)                (GPT-2)
    post       norm(x + f(x))               (Vaswani et al. 2017)
    sandwich   x + norm f(norm x)           (CogView, Ding et al. 2021)
    parallel   x + Σ_k f_k(norm x)          (GPT-J 2021), one norm for all branches

    With ``norms`` branch k has norm k in the place of ``norm``: of another kind, or none; the parallel order becomes
    x + Σ_k f_k(norm_k x) (GPT-NeoX, Black et al. 2022).
    """

    branches: Seq[Branch] = Field(default=(Attention(), FeedForward()), min_length=1)
    order: Literal["pre", "post", "sandwich", "parallel"] = "pre"
    norm: Norm = LayerNorm()
    residual: Residual = Add()
    dropout: float = Field(default=0.0, ge=0, lt=1, description="of what a branch adds")
    drop_path: float = Field(default=0.0, ge=0, lt=1, description="chance that a sequence skips a branch in training (Huang et al. 2016)")
    norms: Seq[Norm] = Field(default=(), description="one for each branch, in the place of norm; default: norm for each")

    def norm_of(self, i: int) -> Norm:
        """What stands in the place of the norm of branch ``i``."""
        return self.norms[i] if self.norms else self.norm

    @property
    def reversible(self) -> bool:
        """True if what goes into a branch follows from what comes out."""
        return isinstance(self.residual, Reversible)

    def problems(self) -> list[Problem]:
        found = self._reversible_problems() if self.reversible else []
        if len(self.norms) not in (0, len(self.branches)):
            sentence = f"{len(self.norms)} norms are given for {len(self.branches)} branches; give one for each, or none"
            found.append(Problem(("norms",), sentence))
        if self.order == "parallel" and isinstance(self.residual, NoResidual) and len(self.branches) > 1:
            found.append(Problem(("residual",), "branches side by side are added to x, and 'none' would keep the last alone; use another"))
        return found

    def _reversible_problems(self) -> list[Problem]:
        if self.order not in ("pre", "sandwich"):
            return [Problem(("order",), f"a reversible residual needs x back from what joined it: 'pre' or 'sandwich', not {self.order!r}")]
        if not any(isinstance(norm, BatchNorm) for norm in (self.norm, *self.norms)):
            return []
        sentence = "batch_norm would count each batch twice, as a reversible block is computed again; use layer_norm, rms_norm or none"
        return [Problem(("norm",), sentence)]

    @property
    def causal(self) -> bool:
        return all(branch.causal for branch in self.branches)

    @property
    def decodes(self) -> bool:
        return all(branch.decodes for branch in self.branches)


class Layered(Spec):
    """``num_layers`` blocks, the listed ones repeated in turn -> final norm."""

    num_layers: int | None = Field(default=None, gt=0, le=MOST_LAYERS, description="default: the number of blocks listed")
    blocks: Seq[Block] = Field(default=(Block(),), max_length=MOST_LAYERS, description="none: a bag of vectors, each seen alone")
    norm: Norm = LayerNorm()

    @property
    def layers(self) -> tuple[Block, ...]:
        """Every block, the pattern unrolled."""
        return tuple(self.blocks[i % len(self.blocks)] for i in range(self.depth))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.num_layers or len(self.blocks) if self.blocks else 0

    @property
    def reversible(self) -> bool:
        """True if two streams go through the blocks, each branch changing one of them."""
        return any(block.reversible for block in self.blocks)

    def leaving(self, width: int) -> int:
        """Features of a position behind the last block at a width: those of both streams, where there are two."""
        return 2 * width if self.reversible else width

    @property
    def causal(self) -> bool:
        """True if no position sees a later one in any branch."""
        return all(block.causal for block in self.blocks)

    @property
    def decodes(self) -> bool:
        """True if one position can be computed after the other: causal, but for a prefix that each row may have."""
        return all(block.decodes for block in self.blocks)

    @property
    def reads_memory(self) -> bool:
        """True if a branch reads the output of an encoder."""
        return any(branch.reads_memory for block in self.blocks for branch in block.branches)

    @property
    def reads_types(self) -> bool:
        """True if a branch reads the types of tokens, whether or not the front end does."""
        return any(branch.reads_types for block in self.blocks for branch in block.branches)

    @property
    def reads_prefix(self) -> bool:
        """True if a branch asks how long the prefix of each row is."""
        return any(branch.reads_prefix for block in self.blocks for branch in block.branches)

    def first_branch(self, wrong: Callable[[Branch], bool]) -> tuple[str | int, ...]:
        """The path of the first branch of which ``wrong`` is true; empty if there is none."""
        for i, block in enumerate(self.blocks):
            for j, branch in enumerate(block.branches):
                if wrong(branch):
                    return ("blocks", i, "branches", j)
        return ()

    def first_not_decoding(self) -> tuple[str | int, ...]:
        """The path of the first branch that lets a position see a later one; empty if there is none."""
        return self.first_branch(lambda branch: not branch.decodes)

    def block_problems(self, width: int) -> list[Problem]:
        """What does not fit together at a width."""
        found: list[Problem] = []
        for i, block in enumerate(self.blocks):
            for j, branch in enumerate(block.branches):
                found += [p.under("blocks", i, "branches", j) for p in branch.width_problems(width)]
        if self.num_layers and not self.blocks:
            found.append(
                Problem(("num_layers",), f"{self.num_layers} layers cannot be made of no block; leave the key out, or list a block")
            )
        if self.num_layers and self.num_layers < len(self.blocks):
            found.append(Problem(("num_layers",), f"{self.num_layers} layers are fewer than the {len(self.blocks)} blocks of the pattern"))
        other = next((i for i, block in enumerate(self.blocks) if not block.reversible), None) if self.reversible else None
        if other is not None:
            sentence = "the other blocks are reversible and have two streams, and this one has one; make all of them reversible, or none"
            found.append(Problem(("blocks", other, "residual"), sentence))
        return found


class Reader(Spec):
    """What has a front end."""

    context_length: int = Field(default=256, gt=0, description="longest sequence in training; the size of a learned position table")
    frontend: Frontend = Text()

    @property
    def vocab_size(self) -> int | None:
        """V, None while the tokenizer that decides it is not known."""
        return self.frontend.vocab_size if isinstance(self.frontend, Text) else None

    def frontend_width(self, width: int) -> int:
        """Features of the front end's vectors, where those of a position are ``width``."""
        return (isinstance(self.frontend, Text) and self.frontend.width) or width


class Stack(Layered, Reader):
    """Front end -> ``num_layers`` blocks, the listed ones repeated in turn -> final norm."""

    def types_read(self, types: Sequence[int]) -> list[int]:
        """``types`` of tokens as the stack tells them apart: none where it reads none, and none above the last that its front end knows."""
        known = self.frontend.types if isinstance(self.frontend, Text) else 0
        if known:
            return [min(kind, known - 1) for kind in types]
        return list(types) if self.reads_types else []

    def stack_problems(self, width: int, frontend_width: int | None = None) -> list[Problem]:
        """What does not fit together at a width; ``frontend_width``: of the front end's vectors, where these may have one of their own."""
        found, own = self.block_problems(width), self.frontend_width(width)
        if own != (frontend_width or width):
            sentence = (
                f"the blocks read vectors of {width} features, not of {own}; leave it out, or give model.latents, which read any width"
            )
            found.append(Problem(("frontend", "width"), sentence))
        if not isinstance(self.frontend, Text):
            return found
        if self.frontend.join == "concatenate" and own % 2:
            found.append(Problem(("width",), f"concatenated positions take half of the width, and {own} is odd"))
        each = self.frontend.vector_width(own)
        return [*found, *(p.under("frontend", "positions") for p in self.frontend.positions.width_problems(each))]


_ENCODER_BLOCK = Block(branches=(Attention(mask=Full()), FeedForward()))
_READING_BLOCK = Block(branches=(CrossAttention(), FeedForward()))


class Encoder(Stack):
    """The stack that reads the source of an encoder–decoder, as wide as the model; its output is the memory that the other stack reads."""

    blocks: Seq[Block] = Field(default=(_ENCODER_BLOCK,), min_length=1)
    memory: Literal["last", "layers"] = Field(
        default="last", description="last: every layer reads the normed output; layers: layer i reads that of encoder layer i"
    )
    share_embedding: bool = Field(default=False, description="one table of token vectors for source and target")


class Latents(Layered):
    """M learned vectors that read the front end's N in place of the model's own blocks (Perceiver, Jaegle et al. 2021), in O(N M).

    The cross branches of their blocks read what the front end gives, attention is between the M, and the model's own blocks read what comes
    out. As many cross branches as are listed read the input, each with weights of its own; in ``rounds`` the same ones read it again, as in the
    paper.
    """

    count: int = Field(default=64, gt=0, le=WIDEST, description="M")
    width: int | None = Field(default=None, gt=0, le=WIDEST, description="features of each; default: the model's")
    blocks: Seq[Block] = Field(default=(_READING_BLOCK, _ENCODER_BLOCK), min_length=1)
    rounds: int = Field(default=1, gt=0, le=1000, description="how often the layers are gone through, with the same weights")
    once: int = Field(default=0, ge=0, description="layers that are gone through once, before the rounds")

    @property
    def walk(self) -> tuple[int, ...]:
        """The numbers of the layers in the order in which they are gone through."""
        count = self.depth
        return (*range(self.once), *[*range(self.once, count)] * self.rounds)

    def problems(self) -> list[Problem]:
        if self.once >= self.depth:
            return [Problem(("once",), f"{self.once} layers before the rounds leave none of the {self.depth} for them; give fewer")]
        if self.rounds * self.depth <= MOST_LAYERS:
            return []
        return [Problem(("rounds",), f"{self.rounds} rounds of {self.depth} layers are more than {MOST_LAYERS} in all; give fewer")]


class Queries(Spec):
    """What the model's own blocks begin with where latents have read the input (Perceiver IO, Jaegle et al. 2022): vectors of positions alone."""

    count: int | None = Field(default=None, gt=0, description="so many for each row; default: one for each position of the input")
    positions: Positions = Learned()

    def problems(self) -> list[Problem]:
        if not isinstance(self.positions, NoPositions):
            return []
        return [Problem(("positions",), "there is nothing to ask with; give learned, sinusoidal or learned_sinusoidal")]


class Wide(Spec):
    """What has a width."""

    width: int = Field(default=128, gt=0, le=WIDEST, description="features of a position, D")


class Model(Stack, Wide):
    """A stack with a head; with an ``encoder``, whose output the stack's cross branches read, an encoder–decoder.

    With ``latents`` these read what the front end gives, and the stack's cross branches read them: its blocks begin with ``queries``, or
    without these with what the front end gives. Without any block the head reads the latents themselves.
    """

    encoder: Encoder | None = Field(default=None, description="reads the source; default: none")
    latents: Latents | None = Field(default=None, description="read the input in the place of the blocks; default: none")
    queries: Queries | None = Field(default=None, description="what reads the latents; default: the vectors of the front end")
    head: Head = LanguageModelHead()
    init_std: float = Field(
        default=0.02, gt=0, description="of weight matrices; those that end a branch are divided by √(number of branches)"
    )

    @property
    def tied(self) -> bool:
        """True if the head's matrix is the table of token vectors."""
        return isinstance(self.head, LanguageModelHead) and self.head.tied

    @property
    def causal(self) -> bool:
        return self.latents is None and super().causal

    @property
    def decodes(self) -> bool:
        return self.latents is None and super().decodes

    def first_not_decoding(self) -> tuple[str | int, ...]:
        return ("latents",) if self.latents else super().first_not_decoding()

    @property
    def latent_width(self) -> int:
        """Features of a latent."""
        return (self.latents and self.latents.width) or self.width

    @property
    def answers(self) -> int | None:
        """How many vectors the head reads of each row, however long it is; None: one for each position."""
        if self.latents and not self.blocks:
            return self.latents.count
        return self.queries and self.queries.count

    def problems(self) -> list[Problem]:
        reading = self.frontend_width(self.width) if self.latents else None
        asking = self.queries.positions.width_problems(self.width) if self.queries else []
        return [
            *self.stack_problems(self.width, reading),
            *(p.under("queries", "positions") for p in asking),
            *self._tied_problems(),
            *(self._latent_problems() if self.latents else self._memory_problems()),
            *self._stream_problems(),
        ]

    def _latent_problems(self) -> list[Problem]:
        assert self.latents is not None
        found = [p.under("latents") for p in self.latents.block_problems(self.latent_width)]
        if self.encoder:
            found.append(Problem(("encoder",), "the blocks read latents, and cannot read an encoder's output too; leave one of them out"))
        for stack, path in ((self.latents, ("latents", "blocks")), (self, ("blocks",))):
            if stack.blocks and not stack.reads_memory:
                read = "the input" if path[0] == "latents" else "the latents"
                found.append(Problem(path, f"no branch of these blocks reads {read}; list one of {_memory_kinds()}"))
        if self.queries and not self.blocks:
            found.append(Problem(("queries",), "no block of the model reads the latents with them; list one, or leave them out"))
        if not self.blocks and self.latent_width != self.width:
            sentence = f"the head reads the latents, so their width is the model's, {self.width}, and not {self.latent_width}"
            found.append(Problem(("latents", "width"), sentence))
        if self.blocks and not self.queries and self.frontend_width(self.width) != self.width:
            sentence = "the blocks begin with these vectors, so their width is the model's; leave it out, or give queries"
            found.append(Problem(("frontend", "width"), sentence))
        if self.answers and isinstance(self.head, LanguageModelHead | TokenHead | SpanHead):
            sentence = f"a head of the kind {self.head.kind!r} answers at each position, and it reads {self.answers} vectors a row; "
            found.append(Problem(("head",), sentence + "list a block, and leave queries.count out"))
        return found

    def _tied_problems(self) -> list[Problem]:
        """Problems of a token table that cannot serve in two places."""
        found, own = list[Problem](), self._table_width(self)
        if self.tied and own not in (None, self.width):
            sentence = f"a tied head reads vectors of the model's width, {self.width}, and those of tokens have {own} features; say false"
            found.append(Problem(("head", "tied"), sentence))
        if not self.encoder or not self.encoder.share_embedding:
            return found
        path, other = ("encoder", "share_embedding"), self._table_width(self.encoder)
        if own != other:
            found.append(Problem(path, f"the token vectors of the source have {other} features and those of the target {own}; say false"))
        if None not in (self.vocab_size, self.encoder.vocab_size) and self.vocab_size != self.encoder.vocab_size:
            sizes = f"of {self.encoder.vocab_size} and {self.vocab_size} tokens"
            found.append(Problem(path, f"source and target have vocabularies {sizes}, and a shared table is of one; say false"))
        return found

    def _table_width(self, stack: Stack) -> int | None:
        """Features of the token vectors of a stack; None where it has none."""
        return stack.frontend.vector_width(stack.frontend_width(self.width)) if isinstance(stack.frontend, Text) else None

    def _stream_problems(self) -> list[Problem]:
        found: list[Problem] = []
        if self.tied and self.reversible:
            sentence = "the head stands on two streams and is twice as wide as the table of token vectors, so it cannot be tied; say false"
            found.append(Problem(("head", "tied"), sentence))
        if self.encoder is not None and self.encoder.reversible:
            sentence = "two streams are twice as wide as what the other stack reads; an encoder that is read as a memory is not reversible"
            found.append(Problem(("encoder", "blocks"), sentence))
        if self.latents is not None and (self.reversible or self.latents.reversible):
            found.append(
                Problem(("latents",), "latents are one stream, and reversible blocks have two; use another residual, or no latents")
            )
        return found

    def _memory_problems(self) -> list[Problem]:
        encoder, reader = self.encoder, self.first_branch(lambda branch: branch.reads_memory)
        if self.queries:
            return [Problem(("queries",), "there are no latents for them to read; give model.latents, or leave them out")]
        if encoder is None:
            sentence = "this branch reads the output of an encoder, and the model has none; give model.encoder"
            return [Problem(reader, sentence)] if reader else []
        found = [p.under("encoder") for p in encoder.stack_problems(self.width)]
        if not reader:
            found.append(
                Problem(("encoder",), f"no branch of the model's blocks reads the encoder's output; list one of {_memory_kinds()}")
            )
        inner = encoder.first_branch(lambda branch: branch.reads_memory)
        if inner:
            found.append(Problem(("encoder", *inner), "the encoder has no memory to read; this branch belongs into the model's own blocks"))
        if encoder.memory == "layers" and encoder.depth != self.depth:
            counts = f"the encoder has {encoder.depth} and the model {self.depth}"
            found.append(Problem(("encoder", "memory"), f"layer i reads encoder layer i, so both need as many layers; {counts}"))
        return found


def _memory_kinds() -> str:
    return ", ".join(sorted(kind for kind, part in Branch.kinds().items() if issubclass(part, MemoryBranch)))
