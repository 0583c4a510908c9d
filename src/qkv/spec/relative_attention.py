"""Attention whose scores also meet learned vectors of the distance: DeBERTa's and Transformer-XL's."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pydantic import Field

from qkv.spec.branches import MaskedAttention
from qkv.spec.errors import Problem
from qkv.spec.masks import Full, Mask
from qkv.spec.parts import BatchNorm, NoNorm, Norm


class DisentangledAttention(MaskedAttention, kind="disentangled_attention"):
    """softmax((q_i · k_j + q_i · a_d + b_d · k_j) / (temperature √(f Dk))) V, a = P W_a, b = P W_b, P (2 S, D) learned vectors of the
    distance's bucket d = clip(bucket(i - j) + S, 0, 2 S - 1), f the number of terms (DeBERTa, He et al. 2021).

    With ``position_buckets`` S of them hold one distance each up to S / 2 and then ever more up to ``max_distance``; without them S is
    ``max_distance``. ``share_projections`` takes W_a = W_k and W_b = W_q, biases included, as DeBERTa-v3 does. Without ``key_bias`` k and a
    have no bias where the others do, as in the first DeBERTa. ``qk_norm`` acts on q and k and not on a and b. With ``shared`` the table of a stack's first such layer serves all that ask for the same, as in the published models.
    """

    mask: Mask = Full()
    position_buckets: int | None = Field(default=256, ge=2, description="S; null: every distance has its own vector")
    max_distance: int = Field(default=512, gt=0, description="what is further away counts as this far")
    content_to_position: bool = Field(default=True, description="q_i · a_d joins the scores")
    position_to_content: bool = Field(default=True, description="b_d · k_j joins the scores")
    share_projections: bool = True
    key_bias: bool = Field(default=True, description="of the keys and of a, where there is bias")
    table_norm: Norm = NoNorm()
    table_dropout: float = Field(default=0.0, ge=0, lt=1, description="of the vectors P in training")
    shared: bool = Field(default=False, description="one table for all layers of a stack that ask for the same")

    @property
    def span(self) -> int:
        """S: the table has 2 S vectors."""
        return self.position_buckets or self.max_distance

    @property
    def table_key(self) -> tuple[Hashable, ...]:
        """What is equal in layers that can share a table, beside the width."""
        norm: Any = self.table_norm  # frozen, which its type does not say can be hashed
        return "disentangled", self.position_buckets, self.max_distance, norm

    @property
    def biases_apart(self) -> bool:
        """True if queries and values have a bias and keys have none."""
        return self.bias and not self.key_bias

    @property
    def terms(self) -> int:
        """f: how many products a score is the sum of."""
        return 1 + self.content_to_position + self.position_to_content

    def problems(self) -> list[Problem]:
        found = super().problems()
        if self.terms == 1:
            found.append(
                Problem(
                    ("content_to_position",), "neither term of the distance is left; keep one, or use 'attention', which is content alone"
                )
            )
        if isinstance(self.table_norm, BatchNorm):
            found.append(Problem(("table_norm",), "the vectors of distances are no batch; use layer_norm, rms_norm or none"))
        if self.position_buckets is not None and self.max_distance < self.position_buckets // 2 + 2:
            least = self.position_buckets // 2 + 2
            found.append(
                Problem(("max_distance",), f"{self.max_distance} is within the buckets of one distance each; give at least {least}")
            )
        return found


class RelativeAttention(MaskedAttention, kind="relative_attention"):
    """softmax(((q_i + u) · k_j + (q_i + v) · W_r r_{i-j}) / (temperature √Dk)) V, r a sinusoid of D features, u and v learned for each head
    (Transformer-XL, Dai et al. 2019; XLNet, Yang et al. 2019).

    ``causal & window(n)`` remembers n - 1 positions before the current one, as Transformer-XL's memory does. ``by_type`` adds
    (q_i + w) · e_s to the first factor, s = 0 if the types of both tokens are the same and else 1 (XLNet).
    """

    bias: bool = False
    max_distance: int | None = Field(default=None, gt=0, description="what is further away counts as this far; default: no limit")
    by_type: bool = Field(default=False, description="scores also say whether two tokens are of the same type")

    @property
    def reads_types(self) -> bool:
        return self.by_type
