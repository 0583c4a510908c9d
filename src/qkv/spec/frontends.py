"""Specs of front ends, which embed an input signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.errors import Problem, SpecError
from qkv.spec.parts import Learned, NoNorm, Norm, Positions, grid_problems
from qkv.spec.processors import INPUT, Processor, WordFeatures

WIDEST, MOST_TOKENS = 1_000_000, 100_000_000
"""Upper bounds of the features of a vector and of the vocabulary size, far beyond any published model."""


class Frontend(Part, slot=True):
    """Base class of front ends, which map a model's input (tokens, pixels, audio) to one vector per position."""

    reads_tokens: ClassVar[bool] = False
    """True if it has a table of token embeddings."""
    processor: ClassVar[type[Processor] | None] = None
    """Spec class of the processor that produces its input, such as ``Images``; None for text."""
    grid_axes: ClassVar[int] = 1
    """Number of axes of the grid on which its positions lie, such as 2 for image patches; 1 for a sequence."""

    @property
    def own_processor(self) -> Processor | None:
        """Processor of a published model whose config says all about it, such as the rate of a codec; else None."""
        return None

    @property
    def on_grid(self) -> bool:
        """True if its positions lie on a grid, such as image patches. Such rows are never decoded step by step."""
        return self.grid_axes > 1

    @property
    def reads_whole_rows(self) -> bool:
        """True if a vector may depend on all values of its row. Such rows are never decoded token by token."""
        return self.on_grid

    @property
    def lengthens(self) -> bool:
        """True if the front end pads each row with further positions, which the model reads."""
        return False

    @property
    def reach(self) -> int | None:
        """Number of values that a vector depends on, around those of its position; None if it may be all of a row."""
        return None

    @property
    def leading(self) -> int:
        """Number of positions before those of the grid, such as a class token."""
        return 0

    def fitted(self, processor: Processor) -> Self:
        """Return a copy with the signal sizes of ``processor``. Raises ``SpecError`` if sizes in the spec differ."""
        return self

    def of_processors(self, processors: Mapping[str, Processor]) -> Self:
        """Return a copy ``fitted`` to the processors of a run. ``processors``: processor of each input by name."""
        return self.fitted(processors[INPUT]) if INPUT in processors else self

    @property
    def inputs_read(self) -> Mapping[str, Frontend]:
        """Front ends of several inputs by name; empty for one input."""
        return {}

    @property
    def grid(self) -> tuple[int, ...] | None:
        """Shape of the grid of its positions, in row-major order, such as (rows, columns) of image patches.

        None for a sequence, or until the sizes are known.
        """
        return None

    @property
    def covered(self) -> tuple[float, ...]:
        """Fraction of each axis of the input, from its start, that the positions of ``grid`` cover."""
        return (1.0,) * len(self.grid or ())

    @property
    def cell(self) -> int | None:
        """Height and width, in pixels, of the image area at each grid position; None without images."""
        return None

    @property
    def num_positions(self) -> int | None:
        """Number of positions of every row, if it is fixed; None if rows have any length, or until it is known."""
        return None

    def positions_of(self, size: int) -> int:
        """Return the number of positions of a row of ``size`` values, such as frames or samples; by default equal."""
        return self.num_positions or size

    @property
    def num_tokens(self) -> int | None:
        """Vocabulary size, the rows of the token embedding table; None without tokens, or if unknown."""
        return None

    @property
    def num_types(self) -> int:
        """Number of token types (segments, such as first and second text) that the front end embeds; 0 for none."""
        return 0

    @property
    def initial_vectors(self) -> str | None:
        """Run folder or text file with initial token embeddings; None if they are initialised at random."""
        return None

    @property
    def words(self) -> WordFeatures | None:
        """Word features that it embeds; None if it reads tokens or other signals."""
        return None

    @property
    def limited_by(self) -> str:
        """Dotted configuration key that limits the number of positions, for messages."""
        return "model.context_length"

    def limit(self, context_length: int) -> int | None:
        """Return the maximum number of positions of a row in a model of ``context_length``; None if unlimited."""
        return None

    def own_width(self, width: int) -> int:
        """Return the width of the front end's output vectors in a model of ``width`` features."""
        return width

    def table_width(self, width: int) -> int | None:
        """Return the width of the token embeddings for outputs of ``width`` features; None if it reads no tokens."""
        return None

    def width_problems(self, width: int) -> list[Problem]:
        """Return the errors in these settings for output vectors of ``width`` features; empty if none."""
        return []

    def sized(self, vocab_size: int) -> Self:
        """Return a copy with the data's vocabulary size filled in. Raises ``SpecError`` if the spec's is smaller."""
        return self

    def unsized(self) -> Self:
        """Return a copy without fields specific to a data set: sizes and the source of initial embeddings."""
        return self

    def without_initial_vectors(self) -> Self:
        """Return a copy without the source of initial embeddings, which is only read at the start of training."""
        return self

    def canonical(self, width: int) -> Self:
        """Return an equivalent copy for comparisons: sizes for ``width`` filled in, settings such as dropout reset."""
        return self

    def asking(self, mask: int) -> int:
        """Return the input id at positions to predict: -1 (learned query vector, XLNet) if it exists, else ``mask``."""
        return mask


class Tokens(Frontend):
    """Base class of front ends with a table of token embeddings."""

    reads_tokens = True
    vocab_size: int | None = Field(default=None, gt=0, le=MOST_TOKENS, description="default: the tokenizer's")

    @property
    def num_tokens(self) -> int | None:
        return self.vocab_size

    def sized(self, vocab_size: int) -> Self:
        if self.vocab_size is None:
            return self.changed(vocab_size=vocab_size)
        if self.vocab_size < vocab_size:
            sentence = (
                f"{self.vocab_size} ids are fewer than the {vocab_size} of the tokenizer; "
                "leave the key out to take its size"
            )
            raise SpecError([Problem(("vocab_size",), sentence)])
        return self


class Placed(Frontend):
    """Base class of front ends that add position vectors to the vectors of their values, or concatenate both."""

    positions: Positions = Learned()
    join: Literal["add", "concatenate"] = "add"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    norm: Norm = Field(default=NoNorm(), description="norm of the embeddings")
    norm_first: bool = Field(default=False, description="add positions after the norm, not before it")

    def vector_width(self, width: int) -> int:
        """Return the width of a token (and position) embedding for a sum or concatenation of ``width`` features."""
        return width if self.join == "add" else width // 2

    @property
    def num_placed(self) -> int | None:
        """Number of positions that have a position vector, if it is fixed; by default all of them."""
        return self.num_positions

    @property
    def limited_by(self) -> str:
        return self.positions.limited_by

    def limit(self, context_length: int) -> int | None:
        return self.positions.limit(context_length)

    def width_problems(self, width: int) -> list[Problem]:
        problems = [p.under("frontend", "positions") for p in self.positions.width_problems(self.vector_width(width))]
        if self.join == "concatenate" and width % 2:
            problems.insert(
                0, Problem(("width",), f"concatenated positions take half of the width, but {width} is odd")
            )
        return problems

    def problems(self) -> list[Problem]:
        if problems := grid_problems(self.positions, self.grid_axes, "positions"):
            return problems
        if self.norm_first and self.join == "concatenate":
            return [Problem(("norm_first",), "a norm before positions is for added ones; leave it out, or use 'add'")]
        if self.join == "concatenate" and self.positions.absent:
            return [
                Problem(("join",), "there are no positions to concatenate; use 'add', or other positions than 'none'")
            ]
        return []


class Text(Placed, Tokens, kind="text"):
    """Token embeddings combined with position embeddings, then an optional norm.

    ``types``: number of learned token type embeddings; each token's type embedding is added to it (BERT, Devlin et al.
    2019). ``query``: an id of -1 selects a learned query vector, the input of positions whose token is to be predicted
    (XLNet, Yang et al. 2019). ``embedding_width``: all of these vectors have E features, and after the norm a linear
    map W x + b takes them to the model's width (ALBERT, Lan et al. 2020; ELECTRA, Clark et al. 2020).
    """

    scale: bool = Field(default=False, description="multiply token embeddings by √width (Vaswani et al. 2017)")
    vectors: str | None = Field(
        default=None,
        min_length=1,
        description="run folder, or text file of words and numbers, with initial token embeddings",
    )
    types: int = Field(default=0, ge=0, le=WIDEST, description="number of token types, such as first and second text")
    query: bool = Field(default=False, description="learned query vector for the id -1")
    width: int | None = Field(
        default=None, gt=0, le=WIDEST, description="width of the embeddings if latents read them; default: the model's"
    )
    embedding_width: int | None = Field(
        default=None, gt=0, le=WIDEST, description="features of the embeddings before a linear map; default: no map"
    )
    multiplier: float = Field(default=1.0, gt=0, description="fixed factor of the token embeddings (Granite, 2024)")
    mask_token: int | None = Field(
        default=None, ge=0, le=MOST_TOKENS, description="id of tokens that are treated as dropped out; default: none"
    )
    fill: int | None = Field(
        default=None,
        ge=0,
        le=MOST_TOKENS,
        description="id with which every row is filled to context_length; all branches read it (SigLIP); default: none",
    )

    @property
    def reads_whole_rows(self) -> bool:
        return self.mask_token is not None or self.fill is not None

    @property
    def lengthens(self) -> bool:
        return self.fill is not None

    def problems(self) -> list[Problem]:
        if self.fill is None or self.vocab_size is None or self.fill < self.vocab_size:
            return super().problems()
        sentence = f"the vocabulary has {self.vocab_size} tokens, with ids up to {self.vocab_size - 1}, not {self.fill}"
        return [*super().problems(), Problem(("fill",), sentence)]

    @property
    def num_types(self) -> int:
        return self.types

    @property
    def initial_vectors(self) -> str | None:
        return self.vectors

    def own_width(self, width: int) -> int:
        return self.width or width

    def placed_width(self, width: int) -> int:
        """Return the width of the embeddings with their positions, before the linear map to ``width`` features."""
        return self.embedding_width or self.own_width(width)

    def table_width(self, width: int) -> int:
        return self.vector_width(self.placed_width(width))

    def width_problems(self, width: int) -> list[Problem]:
        return super().width_problems(self.embedding_width or width)

    def unsized(self) -> Self:
        return self.changed(vocab_size=None, vectors=None)

    def without_initial_vectors(self) -> Self:
        return self.changed(vectors=None)

    def canonical(self, width: int) -> Self:
        return self.changed(vectors=None, dropout=0.0, width=self.own_width(width))

    def asking(self, mask: int) -> int:
        return -1 if self.query else mask


class HashedWords(Placed, kind="words"):
    """Sum of the embeddings of a word's hashed features, one position per word, combined with position embeddings.

    No tokenizer is needed, and an unknown word still has known features. The embeddings are summed, not averaged: with
    a linear head the model is logistic regression over the features, and a rare feature has the same weight in short
    and in long words.
    """

    features: WordFeatures = WordFeatures()

    @property
    def words(self) -> WordFeatures:
        return self.features

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)
