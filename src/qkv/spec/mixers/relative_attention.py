"""Specs of attention with relative position scores: DeBERTa's, Transformer-XL's and WavLM's."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self

from pydantic import Field

from qkv.spec.branches import MaskedAttention
from qkv.spec.errors import Problem
from qkv.spec.masks import Full, Mask
from qkv.spec.models.growth import NEAR, STORED, Growth
from qkv.spec.parts import NoNorm, Norm, T5Buckets


class DisentangledAttention(MaskedAttention, kind="disentangled_attention"):
    """DeBERTa's attention: softmax((q_i · k_j + q_i · a_d + b_d · k_j) / (temperature √(f Dk))) V (He et al. 2021).

    a = P W_a and b = P W_b with learned vectors P (2 S, D) of the distance bucket d = clip(bucket(i - j) + S, 0, 2 S
    - 1); f is the number of terms. With ``position_buckets`` S: one bucket per distance up to S / 2, then logarithmic
    up to ``max_distance``; without: S = ``max_distance``. ``share_projections``: W_a = W_k and W_b = W_q, biases
    included (DeBERTa-v3). ``key_bias`` false: k and a have no bias (first DeBERTa). ``qk_norm`` applies to q and k,
    not to a and b. With ``shared`` all layers of a stack with equal settings use one table P, as in the published
    models.
    """

    mask: Mask = Full()
    position_buckets: int | None = Field(
        default=256, ge=2, description="number of distance buckets, S; null: one vector per distance"
    )
    max_distance: int = Field(default=512, gt=0, description="larger distances are clipped to it")
    content_to_position: bool = Field(default=True, description="add q_i · a_d to the scores")
    position_to_content: bool = Field(default=True, description="add b_d · k_j to the scores")
    share_projections: bool = True
    key_bias: bool = Field(default=True, description="bias of k and a, if bias is true")
    table_norm: Norm = NoNorm()
    table_dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on P")
    shared: bool = Field(default=False, description="one table for all layers of a stack with equal settings")

    @property
    def span(self) -> int:
        """Half of the number of vectors in the table, S."""
        return self.position_buckets or self.max_distance

    @property
    def table_key(self) -> tuple[Hashable, ...]:
        """Settings that, besides the width, must be equal in layers that share one table of distance vectors."""
        norm: Any = self.table_norm  # a frozen spec is hashable, but its static type does not show it
        return "disentangled", self.position_buckets, self.max_distance, norm

    @property
    def biases_apart(self) -> bool:
        """True if queries and values have a bias and keys have none."""
        return self.bias and not self.key_bias

    @property
    def terms(self) -> int:
        """Number of dot products summed to a score, f: 1 to 3."""
        return 1 + self.content_to_position + self.position_to_content

    @property
    def growth(self) -> Growth:
        return STORED if self.mask.reach is None else NEAR

    def canonical(self, width: int) -> Self:
        return super().canonical(width).changed(table_dropout=0.0)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.terms == 1:
            problems.append(
                Problem(
                    ("content_to_position",),
                    "both position terms are off; keep one, or use 'attention', which has content scores only",
                )
            )
        if self.table_norm.over_batch:
            problems.append(
                Problem(("table_norm",), "batch_norm does not apply to a table; use layer_norm, rms_norm or none")
            )
        if self.position_buckets is not None and self.max_distance < self.position_buckets // 2 + 2:
            least = self.position_buckets // 2 + 2
            problems.append(
                Problem(
                    ("max_distance",),
                    f"{self.max_distance} is too small, as distances below {least} have one bucket each; give {least}",
                )
            )
        return problems


class RelativeAttention(MaskedAttention, kind="relative_attention"):
    """Transformer-XL's attention (2019): softmax(((q_i + u) · k_j + (q_i + v) · W_r r_{i-j}) / (temperature √Dk)) V.

    r is a sinusoid of D features; u and v are learned per head. The mask ``causal & window(n)`` corresponds to
    Transformer-XL's memory of n - 1 positions. ``by_type`` adds (q_i + w) · e_s to the scores, s = 0 if both tokens
    have the same type, else 1 (XLNet, Yang et al. 2019).
    """

    bias: bool = False
    max_distance: int | None = Field(
        default=None, gt=0, description="larger distances are clipped to it; default: no limit"
    )
    by_type: bool = Field(default=False, description="add a score for equal or different token types")

    @property
    def growth(self) -> Growth:
        return STORED if self.mask.reach is None else NEAR

    @property
    def reads_types(self) -> bool:
        return self.by_type


class GatedBiasAttention(MaskedAttention, kind="gated_bias_attention"):
    """WavLM's attention (Chen et al. 2022): softmax(q_i · k_j / (temperature √Dk) + g_i b_{j-i}) V.

    b is a learned bias per head and bucket of the distance, as in T5. g_i = a (r s - 1) + 2 with a, r = σ(w · x_i)
    of the head's features of the input x, with weights that all heads share, and a learned s per head. With ``shared``
    all layers of a stack use one table of biases, as in the published models.
    """

    num_buckets: int = Field(default=320, ge=4, le=1_000_000, description="number of distance buckets")
    max_distance: int = Field(default=800, gt=0, le=100_000_000, description="larger distances share the last bucket")
    shared: bool = Field(default=True, description="one table for all layers of a stack with equal settings")

    @property
    def growth(self) -> Growth:
        return STORED if self.mask.reach is None else NEAR

    @property
    def buckets(self) -> T5Buckets:
        """Settings of the table of biases."""
        return T5Buckets(num_buckets=self.num_buckets, max_distance=self.max_distance, shared=self.shared)

    def width_problems(self, width: int) -> list[Problem]:
        if width % self.num_heads:
            sentence = f"{self.num_heads} heads do not divide the width, {width}, and each gate reads its features"
            return [*super().width_problems(width), Problem(("num_heads",), sentence)]
        return super().width_problems(width)

    def problems(self) -> list[Problem]:
        if self.max_distance > self.num_buckets // 2:
            return super().problems()
        sentence = f"{self.max_distance} given, but half of the {self.num_buckets} buckets hold one distance each"
        return [*super().problems(), Problem(("max_distance",), f"{sentence}; give more")]
