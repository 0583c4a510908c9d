"""Specs of mixers whose decoding state is a matrix per head: retention, Mamba-2 and the gated delta rule."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.branches import Branch, heads_divide, rotated_pairs
from qkv.spec.errors import Problem
from qkv.spec.models.growth import CHUNKED, RECURRENT, Growth

_CHUNK = "positions per chunk of the parallel form"
_KEYS = "features per query and key; default: width / num_heads"
_KERNEL = "size of the depthwise causal convolution before the state; 1: the position itself"
_CONVOLUTION_BIAS = "bias of the convolution"
_EPS = "epsilon of the norm of the outputs"


class Retention(Branch, kind="retention"):
    """Retention: S_i = γ S_{i-1} + k_i^T v_i, o_i = q_i S_i, γ = 1 - 2^(-5-h) of head h (RetNet, Sun et al. 2023).

    q and k are rotated as in RoPE, k is scaled by 1 / √Dk. y = (norm(o) ⊙ silu(x W_g)) W_o, the norm without weights,
    over the features of a head. Causal; the state has a fixed size.
    """

    num_heads: int = Field(default=4, gt=0)
    head_dim: int | None = Field(default=None, gt=0, description=_KEYS)
    value_dim: int | None = Field(default=None, gt=0, description="features per value; default: 2 head_dim")
    base: float | None = Field(default=10000.0, gt=1, description="base of the rotation; none: no rotation")
    chunk: int = Field(default=64, gt=0, description=_CHUNK)
    bias: bool = False

    @property
    def growth(self) -> Growth:
        return CHUNKED

    def dims(self, width: int) -> tuple[int, int]:
        """Return (Dk, Dv), the features per head of a key and of a value, in a model of ``width`` features."""
        head_dim = self.head_dim or width // self.num_heads
        return head_dim, self.value_dim or 2 * head_dim

    def extrapolates(self, length: int) -> bool:
        return self.base is None

    def width_problems(self, width: int) -> list[Problem]:
        problems = [] if self.head_dim else heads_divide(width, self.num_heads)
        key = self.dims(width)[0]
        return problems if problems or self.base is None else rotated_pairs("head_dim", "a head", key)

    def canonical(self, width: int) -> Self:
        head_dim, value_dim = self.dims(width)
        return self.changed(head_dim=head_dim, value_dim=value_dim)


class Mamba2(Branch, kind="mamba2"):
    """Mamba-2: S_i = a_i S_{i-1} + δ_i b_i^T x_i, o_i = c_i S_i + d x_i (state-space duality, Dao & Gu 2024).

    δ_i = max(softplus(u W_δ + β), min_step) per head, a_i = e^(-δ_i λ), λ > 0 learned per head. x (E features) and b
    and c (``state_size`` features, ``num_groups`` different b and c for all heads) are linear in the input u, then pass
    a depthwise causal convolution and silu. y = RMSNorm(o ⊙ silu(u W_z)) W_o, the norm over each of ``norm_groups``
    groups of features; ``norm`` "before_gate": y = (RMSNorm(o) ⊙ silu(u W_z)) W_o. ``factors`` multiply the linear maps
    of u (Falcon-H1, 2025). Causal; the state has a fixed size.
    """

    num_heads: int = Field(default=4, gt=0)
    expansion: float = Field(default=2.0, gt=0, description="E / width; E is divided among the heads")
    state_size: int = Field(default=64, gt=0, description="features of b and of c")
    num_groups: int = Field(default=1, gt=0, description="number of different b and c; must divide num_heads")
    kernel_size: int = Field(default=4, gt=0, description=_KERNEL)
    convolution_bias: bool = Field(default=True, description=_CONVOLUTION_BIAS)
    bias: bool = Field(default=False, description="bias of the input and output projections")
    min_step: float = Field(default=0.0, ge=0, description="minimum of the step δ")
    factors: Seq[float] = Field(default=(), description="factors of u W for z, x, b, c and δ; default: 1 for all")
    norm: Literal["after_gate", "before_gate", "none"] = Field(
        default="after_gate", description="place of the norm of the outputs"
    )
    norm_groups: int = Field(
        default=1, gt=0, description="groups of features that are normalised separately; must divide E"
    )
    eps: float = Field(default=1e-5, gt=0, description=_EPS)
    chunk: int = Field(default=64, gt=0, description=_CHUNK)

    @property
    def growth(self) -> Growth:
        return CHUNKED

    def inner(self, width: int) -> int:
        """Return the number of features E of all heads in a model of ``width`` features."""
        return round(self.expansion * width)

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.num_heads % self.num_groups:
            sentence = f"{self.num_groups} groups do not divide {self.num_heads} heads"
            problems.append(Problem(("num_groups",), sentence))
        if len(self.factors) not in (0, 5):
            sentence = f"{len(self.factors)} factors are given for z, x, b, c and δ; give five, or none"
            problems.append(Problem(("factors",), sentence))
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        inner = self.inner(width)
        if inner and inner % self.num_heads == 0:
            return self._norm_problems(inner)
        sentence = f"{self.num_heads} heads do not divide {inner} features, {self.expansion:g} times the width {width}"
        return [Problem(("num_heads",), sentence)]

    def _norm_problems(self, inner: int) -> list[Problem]:
        if inner % self.norm_groups == 0:
            return []
        return [Problem(("norm_groups",), f"{self.norm_groups} groups do not divide {inner} features")]

    def canonical(self, width: int) -> Self:
        return self.changed(expansion=self.inner(width) / width)


class GatedDelta(Branch, kind="gated_delta"):
    """Gated delta rule: S_i = a_i S_{i-1} + b_i k_i^T (v_i - k_i a_i S_{i-1}), o_i = q_i S_i (Yang et al. 2025).

    The value that S holds for k_i moves towards v_i by the fraction b_i = max_strength σ(x w_b), per head; above 1 it
    moves beyond v_i, so that the state may change its sign (Grazzi et al. 2024). a_i = e^(-λ softplus(x w_a + β)) is
    the decay; without ``decay``, a = 1 (DeltaNet, Yang et al. 2024). q, k, v pass a depthwise causal convolution and
    silu; q and k are normalised to length 1, and q is scaled by 1 / √Dk. y = (RMSNorm(o) ⊙ silu(x W_g)) W_o. With fewer
    key heads, consecutive heads share q and k. Causal; the state has a fixed size.
    """

    num_heads: int = Field(default=4, gt=0)
    num_key_heads: int | None = Field(default=None, gt=0, description="heads of q and k; default: num_heads")
    head_dim: int | None = Field(default=None, gt=0, description=_KEYS)
    value_dim: int | None = Field(default=None, gt=0, description="features per value; default: head_dim")
    decay: bool = True
    max_strength: float = Field(default=1.0, gt=0, le=2, description="largest fraction b; 2: negative eigenvalues")
    kernel_size: int = Field(default=4, gt=0, description=_KERNEL)
    convolution_bias: bool = Field(default=True, description=_CONVOLUTION_BIAS)
    eps: float = Field(default=1e-5, gt=0, description=_EPS)
    chunk: int = Field(default=64, gt=0, description=_CHUNK)

    @property
    def growth(self) -> Growth:
        return RECURRENT

    @property
    def key_heads(self) -> int:
        """Number of heads of queries and keys; by default the number of heads."""
        return self.num_key_heads or self.num_heads

    def problems(self) -> list[Problem]:
        if self.num_heads % self.key_heads == 0:
            return []
        sentence = f"{self.key_heads} key heads cannot be shared evenly by {self.num_heads} heads"
        return [Problem(("num_key_heads",), sentence)]

    def dims(self, width: int) -> tuple[int, int]:
        """Return (Dk, Dv), the features per head of a key and of a value, in a model of ``width`` features."""
        head_dim = self.head_dim or width // self.num_heads
        return head_dim, self.value_dim or head_dim

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)

    def canonical(self, width: int) -> Self:
        head_dim, value_dim = self.dims(width)
        return self.changed(head_dim=head_dim, value_dim=value_dim, num_key_heads=self.key_heads)
