"""Spec of linear attention and of its feature maps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import LARGEST_SEED, Part
from qkv.spec.branches import Branch, heads_divide
from qkv.spec.errors import Problem
from qkv.spec.models.growth import CHUNKED, LINEAR, Growth


class FeatureMap(Part, slot=True):
    """Base class of feature maps φ of linear attention; the unnormalised weight of a key is φ(q) · φ(k) > 0."""


class Elu(FeatureMap, kind="elu"):
    """φ(x) = elu(x) + 1, as many features as a key has (Katharopoulos et al. 2020)."""


class Favor(FeatureMap, kind="favor"):
    """φ(x) = e^(ω x' - |x'|² / 2) / √M, x' = x / Dk^(1/4), random directions ω (FAVOR+, Choromanski et al. 2021).

    φ(q) · φ(k) has the expectation e^(q · k / √Dk), so that it approximates softmax attention; the error falls as 1 /
    √M. Directions are orthogonal to each other in groups of Dk, and have the lengths of Gaussian vectors.
    """

    num_features: int = Field(default=64, gt=0, description="number of features, M")
    orthogonal: bool = Field(default=True, description="directions are orthogonal; false: independent")
    redraw: int | None = Field(
        default=None, gt=0, description="training steps after which new directions are sampled; default: never"
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=LARGEST_SEED,
        description="seed of the directions; default: derived from the seed of the weights",
    )


class LinearAttention(Branch, kind="linear_attention"):
    """Linear attention: φ(Q) S / (φ(Q) z), S = Σ_j φ(k_j) v_j^T, z = Σ_j φ(k_j), over j <= i if causal.

    Katharopoulos et al. 2020; with ``features: favor`` the Performer (Choromanski et al. 2021). The state has a fixed
    size.
    """

    num_heads: int = Field(default=4, gt=0)
    features: FeatureMap = Elu()
    mask: Literal["causal", "full"] = Field(default="causal", description="full: all positions of a row; not causal")
    chunk: int = Field(default=64, gt=0, description="positions per chunk of the parallel form")
    bias: bool = True

    @property
    def growth(self) -> Growth:
        return CHUNKED if self.causal else LINEAR

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    def width_problems(self, width: int) -> list[Problem]:
        return heads_divide(width, self.num_heads)
