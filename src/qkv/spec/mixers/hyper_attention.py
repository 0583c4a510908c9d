"""Spec of HyperAttention: sorted hashing and sampled columns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import LARGEST_SEED
from qkv.spec.branches import Exactness, HeadedAttention
from qkv.spec.models.growth import LINEAR, Growth


class HyperAttention(HeadedAttention, kind="hyper_attention"):
    """HyperAttention: large scores by sorted hashing, all others estimated from sampled keys (Han et al. 2023).

    Queries and keys are each sorted by a hash, the signs of ``bits`` random projections, in an order in which
    neighbouring hashes differ in one sign. They are cut into blocks, and a query reads the keys of its block exactly.
    ``samples`` keys of the row, except those in the query's block, stand for all other keys, with a weight that makes
    the numerator and the denominator of the softmax unbiased. If causal, a row is halved recursively: the second half
    reads the first half in this way, and parts of up to ``exact_up_to`` positions are exact. Time grows with N, or with
    N log N if causal.

    Keys are sampled anew in each call of training, and with ``seed`` otherwise. Decoding with a state reads all keys,
    so for rows longer than ``exact_up_to`` it differs from one forward pass. A task that decodes such rows is refused
    unless ``inexact_decoding`` is true.
    """

    mask: Literal["causal", "full"] = Field(default="causal", description="full: all positions of a row; not causal")
    block: int = Field(
        default=256, gt=0, description="positions per block; attention is exact if a block is as long as the row"
    )
    samples: int = Field(
        default=256, gt=0, description="keys sampled for all queries, without replacement; as many as positions: exact"
    )
    sampling: Literal["uniform", "value_norm"] = Field(
        default="uniform", description="value_norm: keys with large values are sampled more often"
    )
    bits: int = Field(default=7, gt=0, le=30, description="random projections of the hash")
    exact_up_to: int = Field(
        default=512, gt=0, description="attention is exact in rows (if causal, in parts of rows) of up to this length"
    )
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="seed of projections, and of samples in evaluation")
    bias: bool = True
    inexact_decoding: bool = Field(
        default=False,
        description="allow tasks that decode rows longer than exact_up_to, although decoding differs from training",
    )

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    @property
    def exactness(self) -> Exactness:
        return Exactness(self.exact_up_to, self.inexact_decoding) if self.causal else Exactness()

    def canonical(self, width: int) -> HyperAttention:
        return super().canonical(width).changed(inexact_decoding=False)
