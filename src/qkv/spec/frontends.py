"""The front ends: what makes vectors with positions of a signal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.errors import Problem
from qkv.spec.parts import Learned, NoNorm, NoPositions, Norm, Positions

WIDEST, MOST_TOKENS = 1_000_000, 100_000_000
"""Features of a vector, and tokens of a vocabulary: far beyond any published model, and no more than can be counted on."""


class Frontend(Part, slot=True):
    """A signal made into vectors with positions."""


class Text(Frontend, kind="text"):
    """Token ids -> a table of ``vocab_size`` vectors, joined by position vectors, then normed.

    With ``types`` one of so many learned vectors joins each token's, as the call says (BERT, Devlin et al. 2019). With ``query`` an id of -1
    stands for no token but for one more learned vector, with which a position begins that asks what its token is (XLNet, Yang et al. 2019).
    """

    vocab_size: int | None = Field(default=None, gt=0, le=MOST_TOKENS, description="default: the tokenizer's")
    positions: Positions = Learned()
    join: Literal["add", "concatenate"] = "add"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    scale: bool = Field(default=False, description="multiply token vectors by √width, as in Vaswani et al. 2017")
    vectors: str | None = Field(
        default=None, min_length=1, description="a run folder, or a text file of words and numbers, whose vectors training starts with"
    )
    norm: Norm = Field(default=NoNorm(), description="of the sum")
    types: int = Field(default=0, ge=0, le=WIDEST, description="how many types a token can be of, such as first and second text")
    query: bool = Field(default=False, description="a vector in the place of a token's where the id is -1, for a position that asks")
    width: int | None = Field(default=None, gt=0, le=WIDEST, description="of its vectors, where latents read them; default: the model's")

    def vector_width(self, width: int) -> int:
        """Features of a token's vector, and of a position's, where their sum or join has ``width``."""
        return width if self.join == "add" else width // 2

    def asking(self, mask: int) -> int:
        """The id of a position that asks what its token is: that of ``mask``, where there is no vector for it."""
        return -1 if self.query else mask

    def problems(self) -> list[Problem]:
        if self.join == "concatenate" and isinstance(self.positions, NoPositions):
            return [Problem(("join",), "there are no positions to concatenate; use 'add', or other positions than 'none'")]
        return []
