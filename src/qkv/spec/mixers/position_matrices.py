"""Specs of mixers by matrices over positions: MLP-Mixer's, gMLP's, random mixing and the Fourier transform."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.errors import Problem
from qkv.spec.models.growth import LINEAR, STORED, Growth
from qkv.spec.parts import Activation, LayerNorm, Norm


class PositionMatrices(Branch):
    """Base class of mixers with matrices W over positions, which read rows of up to ``length`` positions. Not causal.

    A row of n positions, padding not counted, uses the first n rows and columns of W: y_i = Σ_{j<n} W_ij x_j.
    """

    length: int | None = Field(
        default=None,
        gt=0,
        description="maximum number of positions, N; default: those of the front end (image patches), else "
        "context_length",
    )

    @property
    def growth(self) -> Growth:
        return STORED

    @property
    def causal(self) -> bool:
        return False

    @property
    def longest_row(self) -> int | None:
        return self.length

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        return self if self.length else self.changed(length=positions)


class TriangularMatrices(PositionMatrices):
    """Base class of mixers with a matrix W over positions that may be lower triangular: y_i = Σ_{j<=i} W_ij x_j."""

    mask: Literal["full", "causal"] = Field(
        default="full", description="causal: no position reads a later one; rows of up to length can be decoded"
    )

    @property
    def causal(self) -> bool:
        return self.mask == "causal"


class TokenMLP(PositionMatrices, kind="token_mlp"):
    """Token-mixing MLP of MLP-Mixer: W2 φ(W1 x + b1) + b2 over positions, with the same weights for all features.

    Tolstikhin et al. 2021. A Mixer layer is this branch followed by ``feed_forward``, both pre-norm.
    """

    hidden: int | None = Field(default=None, gt=0, description="hidden units, F; default: width / 2, as published")
    activation: Activation = "gelu"

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def decoding_advice(self) -> str:
        return "its hidden units read the whole row; use attention, or gmlp with mask=causal"

    def hidden_at(self, width: int) -> int:
        """Return the number of hidden units in a model of ``width`` features."""
        return self.hidden or max(1, width // 2)

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width))


class GMLP(TriangularMatrices, kind="gmlp"):
    """gMLP with its spatial gating unit: V [u ⊙ (W norm(v) + b)], [u, v] = φ(U x), W (N, N) over positions.

    Liu et al. 2021. W is initially near 0 and b is 1, so that the gate is near identity. One branch is a whole gMLP
    block; it needs no feed-forward branch. Causal with a lower triangular W.
    """

    hidden: int | None = Field(
        default=None, gt=0, description="features of u and v together, F; default: 6 width, as published"
    )
    activation: Activation = "gelu"
    norm: Norm = LayerNorm()

    def hidden_at(self, width: int) -> int:
        """Return the number of hidden features, u and v together, in a model of ``width`` features."""
        return self.hidden or 6 * width

    def problems(self) -> list[Problem]:
        if self.hidden is None or self.hidden % 2 == 0:
            return []
        return [Problem(("hidden",), f"{self.hidden} features cannot be split into two halves; make the number even")]

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width))


class RandomMixing(TriangularMatrices, kind="random_mixing"):
    """Random mixing: y_i = Σ_j R_ij x_j with a random matrix R that is not trained (MetaFormer, Yu et al. 2022).

    Each row of R is a softmax of uniform random numbers in [0, 1), if causal only over j <= i. R is sampled with the
    initial weights and saved with them.
    """


class Fourier(Branch, kind="fourier"):
    """FNet: real part of the discrete Fourier transform of a row over positions and features (Lee-Thorp et al. 2022).

    y_ic = Re Σ_j Σ_d x_jd e^{-2πi (ij / n + cd / D)} for a row of n positions, padding not counted. Without weights;
    not causal.
    """

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def causal(self) -> bool:
        return False

    @property
    def decoding_advice(self) -> str:
        return "each of its outputs reads the whole row; use attention"
