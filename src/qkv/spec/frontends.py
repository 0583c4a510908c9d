"""Specs of front ends, which embed an input signal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.errors import Problem
from qkv.spec.parts import Learned, NoNorm, NoPositions, Norm, Positions

WIDEST, MOST_TOKENS = 1_000_000, 100_000_000
"""Upper bounds of the features of a vector and of the vocabulary size, far beyond any published model."""


class Frontend(Part, slot=True):
    """Front end: embeds an input signal as a sequence of vectors with positions."""


class Text(Frontend, kind="text"):
    """Token embeddings combined with position embeddings, then an optional norm.

    ``types``: number of learned token type embeddings, added to each token's (BERT, Devlin et al. 2019). ``query``: an id
    of -1 selects a learned query vector, the input of positions whose token is to be predicted (XLNet, Yang et al. 2019).
    """

    vocab_size: int | None = Field(default=None, gt=0, le=MOST_TOKENS, description="default: the tokenizer's")
    positions: Positions = Learned()
    join: Literal["add", "concatenate"] = "add"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    scale: bool = Field(default=False, description="multiply token embeddings by √width (Vaswani et al. 2017)")
    vectors: str | None = Field(
        default=None, min_length=1, description="run folder, or text file of words and numbers, with initial token embeddings"
    )
    norm: Norm = Field(default=NoNorm(), description="norm of the embeddings")
    types: int = Field(default=0, ge=0, le=WIDEST, description="number of token types, such as first and second text")
    query: bool = Field(default=False, description="learned query vector for the id -1")
    width: int | None = Field(
        default=None, gt=0, le=WIDEST, description="width of the embeddings if latents read them; default: the model's"
    )

    def vector_width(self, width: int) -> int:
        """Width of token and position embeddings whose sum or concatenation has ``width``."""
        return width if self.join == "add" else width // 2

    def asking(self, mask: int) -> int:
        """Input id of a position whose token is to be predicted: -1 with ``query``, else the mask token ``mask``."""
        return -1 if self.query else mask

    def problems(self) -> list[Problem]:
        if self.join == "concatenate" and isinstance(self.positions, NoPositions):
            return [Problem(("join",), "there are no positions to concatenate; use 'add', or other positions than 'none'")]
        return []
