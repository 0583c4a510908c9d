"""Specs of quantizers: each vector of a sequence becomes one code per codebook (neural codecs)."""

from __future__ import annotations

from math import log2, prod
from typing import Annotated

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem
from qkv.spec.frontends import WIDEST

MOST_CODEBOOKS = 256
_Width = Annotated[int, Field(gt=0, le=WIDEST)]
_Commitment = Annotated[float, Field(ge=0, description="weight of (z - q)² in the loss")]


class Quantizer(Part, slot=True):
    """Base class of quantizers: a vector becomes K codes, one of each codebook.

    The first n codebooks alone also describe a vector, less accurately. With ``dropout``, a model learns to decode any
    n, so that one model serves K bit rates (Zeghidour et al. 2021).
    """

    codebooks: int = Field(default=4, gt=0, le=MOST_CODEBOOKS, description="number of codebooks, K")
    dropout: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="fraction of the training batches with a random number of first codebooks; 0: always all",
    )

    @property
    def codes_each(self) -> int:
        """Number of codes of a codebook."""
        raise NotImplementedError

    @property
    def bits(self) -> float:
        """Bits of the code of one codebook, log2 of the number of codes."""
        return log2(self.codes_each)


class ScalarQuantizer(Quantizer, kind="scalar"):
    """Finite scalar quantisation (FSQ, Mentzer et al. 2023): each of d numbers is rounded to one of L_i levels.

    A linear map gives d numbers for each codebook, which are bounded by tanh and rounded; a code stands for d levels.
    There is nothing to learn in a codebook, so none collapses. Codebook k + 1 quantises other numbers than codebook k.
    """

    levels: Seq[Annotated[int, Field(ge=2, le=65536)]] = Field(
        default=(8, 5, 5, 5), min_length=1, max_length=32, description="levels of each number, L_1 … L_d"
    )

    @property
    def codes_each(self) -> int:
        return prod(self.levels)

    def problems(self) -> list[Problem]:
        if self.codes_each <= WIDEST:
            return []
        sentence = f"{self.codes_each} codes are more than {WIDEST}, the most of a codebook"
        return [Problem(("levels",), f"{sentence}; give fewer levels, and more codebooks")]


class ResidualQuantizer(Quantizer, kind="residual"):
    """Residual vector quantisation (Zeghidour et al. 2021): r_1 = z, q_k = code nearest to r_k, r_{k+1} = r_k - q_k.

    The codes of each codebook are moving averages of the vectors nearest to them (van den Oord et al. 2017); a code
    that is used too rarely is replaced by a vector of the batch.
    """

    codes: int = Field(default=1024, gt=1, le=WIDEST, description="number of codes of a codebook")
    code_width: _Width | None = Field(
        default=None, description="features of a code, with linear maps around the codebooks; default: those of z"
    )
    commitment: _Commitment = 0.25
    decay: float = Field(default=0.99, ge=0, lt=1, description="decay of the moving averages of codes, per batch")
    restart: float = Field(
        default=0.02, ge=0, description="moving average of uses per batch below which a code is replaced; 0: never"
    )

    @property
    def codes_each(self) -> int:
        return self.codes


class SplitQuantizer(ResidualQuantizer, kind="split"):
    """Two residual quantisers of the same vector: q = U_1 q¹(W_1 z) + U_2 q²(W_2 z) (Mimi, Défossez et al. 2024).

    The first ``semantic`` codebooks are those of q¹, which is trained to say what is said, and the others of q².
    """

    semantic: int = Field(default=1, gt=0, le=MOST_CODEBOOKS, description="number of codebooks of the first quantiser")

    def problems(self) -> list[Problem]:
        if self.semantic < self.codebooks:
            return []
        sentence = f"{self.semantic} of {self.codebooks} codebooks leave none for the second quantiser; give fewer"
        return [Problem(("semantic",), sentence)]


class ProjectedQuantizer(Quantizer, kind="projected"):
    """Residual quantisation in few dimensions (Kumar et al. 2023): q_k = U_k e, e = code nearest to W_k r_k by angle.

    Codes are learned by (q - z)², and z by ``commitment`` times the same, each without a gradient through the other.
    """

    codes: int = Field(default=1024, gt=1, le=WIDEST, description="number of codes of a codebook")
    code_width: _Width = Field(default=8, description="features of a code")
    commitment: _Commitment = 0.25

    @property
    def codes_each(self) -> int:
        return self.codes
