"""Specs of attention with other keys, values or weights: multi-head latent and differential attention."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from qkv.spec.branches import Exactness, Headed, Masked, MaskedAttention, heads_divide
from qkv.spec.errors import Problem
from qkv.spec.parts import NoRelative, Relative, RMSNorm, RopeScaling, SwitchedNorm


class LatentAttention(Masked, Headed, kind="latent_attention"):
    """Multi-head latent attention: keys and values of all heads from one vector c = norm(x W_c) (DeepSeek-V2, 2024).

    k_h = (c W_kh, RoPE(x W_r)), v_h = c W_vh; the rotated part is shared by all heads. Decoding stores only c and the
    rotated part, ``kv_rank`` + ``rope_dim`` values per position. With ``query_rank``, queries too are computed from a
    vector of that size.
    """

    kv_rank: int | None = Field(default=None, gt=0, description="features of c; default: 4 head_dim")
    query_rank: int | None = Field(
        default=None, gt=0, description="features of the vector from which queries are computed; default: x itself"
    )
    head_dim: int | None = Field(
        default=None, gt=0, description="unrotated features per head of a key; default: width / num_heads"
    )
    rope_dim: int | None = Field(
        default=None, ge=0, description="rotated features of a key; default: half of head_dim; 0: no positions"
    )
    value_dim: int | None = Field(default=None, gt=0, description="default: head_dim")
    base: float = Field(default=10000.0, gt=1, description="base of RoPE")
    scaling: RopeScaling | None = Field(default=None, description="scaling of RoPE")
    norm: SwitchedNorm = Field(
        default=RMSNorm(), description="norm of c, and of the vector from which queries are computed"
    )
    temperature: float = Field(default=1.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def dims(self, width: int) -> tuple[int, int, int]:
        """Return the numbers of features per head of a key's unrotated part, its rotated part, and a value."""
        head_dim = self.head_dim or width // self.num_heads
        half = 2 * -(-head_dim // 4)  # even, as RoPE rotates pairs
        return head_dim, half if self.rope_dim is None else self.rope_dim, self.value_dim or head_dim

    def rank(self, width: int) -> int:
        """Return the width of c, from which keys and values are computed, in a model of ``width`` features."""
        return self.kv_rank or 4 * self.dims(width)[0]

    def extrapolates(self, length: int) -> bool:
        near = self.mask.reach is not None and self.mask.reach <= length and not self.mask.first_visible
        return self.rope_dim == 0 or near

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.rope_dim and self.rope_dim % 2:
            problems.append(
                Problem(("rope_dim",), f"RoPE rotates pairs of features, not {self.rope_dim}; make it even")
            )
        if self.scaling is not None and self.scaling.fixed_up_to is not None:
            sentence = f"frequencies of {self.scaling.kind!r} depend on the length of a row; use another scaling"
            problems.append(Problem(("scaling",), sentence))
        if self.norm.over_batch:
            sentence = "batch_norm normalises over positions, also over later ones; use layer_norm, rms_norm or none"
            problems.append(Problem(("norm",), sentence))
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)

    def canonical(self, width: int) -> Self:
        head_dim, rope_dim, value_dim = self.dims(width)
        sizes = {"head_dim": head_dim, "rope_dim": rope_dim, "value_dim": value_dim, "kv_rank": self.rank(width)}
        return self.changed(**sizes, dropout=0.0)


class DifferentialAttention(MaskedAttention, kind="differential_attention"):
    """Differential attention: head h of H / 2 is (1 - λ₀) RMSNorm((P_h - λ P_{h + H/2}) [V_g, V_{g + G/2}]).

    P are the softmax weights of H query heads and G key heads, and g is the key/value head of h. λ = e^(a · b) -
    e^(c · d) + λ₀ with four learned vectors of Dk features; the norm has no weights (Ye et al. 2024). The difference
    cancels the weight on irrelevant keys.
    """

    relative: Relative = Field(default=NoRelative(), description="rope, or none")
    start: float = Field(default=0.8, ge=0, lt=1, description="λ₀, the value of λ before training")
    eps: float = Field(default=1e-5, gt=0, description="epsilon of the norm of the outputs")

    @property
    def exactness(self) -> Exactness:
        return Exactness(self.relative.fixed_up_to, self.relative.accepted)

    def extrapolates(self, length: int) -> bool:
        near = self.mask.reach is not None and self.mask.reach <= length and not self.mask.first_visible
        return self.relative.extrapolates or near

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.relative.kind not in ("rope", "none"):
            sentence = f"{self.relative.kind} is not defined for differences of attention; use rope or none"
            problems.append(Problem(("relative",), sentence))
        for field, heads in (("num_heads", self.num_heads), ("num_kv_heads", self.kv_heads)):
            if heads % 2 and (field == "num_heads" or self.num_heads % 2 == 0):
                problems.append(Problem((field,), f"{heads} heads do not form pairs; give an even number"))
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        problems = super().width_problems(width)
        return problems or [p.under("relative") for p in self.relative.head_problems(self.dims(width)[0])]
