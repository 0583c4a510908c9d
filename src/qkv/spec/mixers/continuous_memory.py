"""Spec of attention with a long-term memory that is a continuous signal (∞-former)."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from qkv.spec.branches import DotProduct, rotated_pairs
from qkv.spec.errors import Problem
from qkv.spec.masks import Causal, Mask, Window
from qkv.spec.models.growth import CHUNKED, Growth


class ContinuousMemory(DotProduct, kind="continuous_memory"):
    """Local attention plus a density over a continuous memory of all earlier segments (∞-former, Martins et al. 2022).

        X̄(t) = Bᵀ ψ(t) for t in [0, 1],  ψ_j(t) = exp(-(t - c_j)² / 2 s²),  c_j = (j + ½) / N_b
        K = B W_K,  V = B W_V,  z = K q_i / (temperature √Dk)
        p = N(μ, σ²),  μ = σ(w · z + b),  σ² = softplus(w' · z + b')      for each query and head
        O_i = softmax attention to the last W positions + E_p[ψ]ᵀ V

    B is fitted to samples by ridge regression: (F Fᵀ + λ I)⁻¹ F X, F = [ψ(t_1), ψ(t_2), …]. The first segment of S
    positions covers [0, 1]. When another segment is complete, the signal so far is contracted to [0, τ] and sampled at
    M times; B is then fitted again to these samples and the new segment on (τ, 1]. A query reads the memory of the
    segments completed before its segment. Causal; the state has a fixed size. Queries and keys of the window are
    rotated as in RoPE.
    """

    segment: int = Field(default=128, gt=0, description="positions that are added to the memory at once, S")
    window: int | None = Field(
        default=None, gt=0, description="positions that are attended to locally, W >= S; default: segment"
    )
    num_basis: int = Field(default=64, gt=0, description="basis functions of the memory, N_b")
    basis_width: float = Field(default=0.75, gt=0, description="s · N_b: width in distances of neighbouring centres")
    contraction: float = Field(default=0.75, gt=0, lt=1, description="part of [0, 1] that the older signal keeps, τ")
    num_samples: int | None = Field(
        default=None, gt=0, description="times at which the older signal is sampled, M; default: 2 num_basis"
    )
    ridge: float = Field(default=0.1, gt=0, description="penalty of the squares of coefficients, λ")
    base: float | None = Field(default=10000.0, gt=1, description="base of the rotation; none: no rotation")

    @property
    def growth(self) -> Growth:
        return CHUNKED

    @property
    def reach(self) -> int:
        """Number of positions that are attended to locally, W."""
        return self.window or self.segment

    @property
    def samples(self) -> int:
        """Number of times at which the older signal is sampled, M."""
        return self.num_samples or 2 * self.num_basis

    @property
    def mask(self) -> Mask:
        """Mask of the local attention."""
        return Causal() & Window(size=self.reach)

    def extrapolates(self, length: int) -> bool:
        return self.base is None or self.reach <= length

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.reach < self.segment:
            sentence = (
                f"a window of {self.reach} positions is shorter than a segment of {self.segment}; "
                f"give {self.segment} or more"
            )
            problems.append(Problem(("window",), sentence))
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        problems = super().width_problems(width)
        key = self.dims(width)[0]
        return problems if problems or self.base is None else rotated_pairs("head_dim", "a head", key)

    def canonical(self, width: int) -> Self:
        return super().canonical(width).changed(window=self.reach, num_samples=self.samples)
