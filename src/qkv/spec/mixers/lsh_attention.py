"""Specs of attention by hash codes: LSH attention (Reformer) and the probability of collisions (YOSO)."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field

from qkv.spec.base import LARGEST, LARGEST_SEED
from qkv.spec.branches import (
    Exactness,
    HeadedAttention,
    Masked,
    MaskedAttention,
    convolution_problems,
    value_convolution_field,
)
from qkv.spec.errors import Problem
from qkv.spec.masks import Full, Mask
from qkv.spec.models.growth import LINEAR, STORED, Growth


def _as_factors(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(cast("list[Any]", value))
    return (value,) if isinstance(value, int) else value


Factors = Annotated[tuple[int, ...], BeforeValidator(_as_factors, json_schema_input_type=int | list[int])]
"""An integer, or a list of its factors."""


class LSHAttention(Masked, HeadedAttention, kind="lsh_attention"):
    """LSH attention (Reformer): softmax(q_i · k_j, j in a chunk near i's) V, k_j = q_j / |q_j| (Kitaev et al. 2020).

    Queries and keys share one projection. In each of ``num_hashes`` rounds a random rotation R per head assigns a
    vector to the bucket argmax(qR ; -qR). Positions are sorted by bucket and cut into chunks. A position attends to its
    chunk, the ``chunks_before`` chunks before it and the ``chunks_after`` chunks after it. Rounds are combined by their
    log-sum-exp. A position attends to itself only if it sees no other key.

    Rows of up to one chunk, and decoding with a state, use full attention, which hashing approximates. So for longer
    rows, decoding and a single forward pass differ, and a task that decodes them is refused unless ``inexact_decoding``
    is true. The selection of keys depends on the whole row, because the row is sorted as a whole; but under a causal
    mask no later key or value is read.

    The paper divides the weight of a key that several rounds select by the number of these rounds. Here, as in the
    published models, the key counts once in each round.
    """

    num_hashes: int = Field(default=2, gt=0, description="hash rounds; more approximate full attention better")
    num_buckets: Factors = Field(
        default=(32,),
        min_length=1,
        max_length=16,
        description="even number of buckets per round, or a list of its even factors, which is cheaper to compute",
    )
    chunk_length: int = Field(
        default=64, gt=0, description="positions per chunk; rows of up to this length are not hashed"
    )
    chunks_before: int = Field(default=1, ge=0)
    chunks_after: int = Field(default=0, ge=0)
    seed: int = Field(
        default=0, ge=0, le=LARGEST_SEED, description="seed of the rotations, which are fixed and not learned"
    )
    bias: bool = False
    inexact_decoding: bool = Field(
        default=False,
        description="allow tasks that decode rows longer than a chunk, although decoding differs from training",
    )

    @property
    def buckets(self) -> int:
        """Number of LSH buckets in a hash round."""
        return prod(self.num_buckets)

    @property
    def met(self) -> int:
        """Number of chunks that a position attends to per round, its own included."""
        return self.chunks_before + 1 + self.chunks_after

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def exactness(self) -> Exactness:
        return Exactness(self.chunk_length, self.inexact_decoding)

    def canonical(self, width: int) -> Self:
        return super().canonical(width).changed(inexact_decoding=False)

    def problems(self) -> list[Problem]:
        wrong = next((count for count in self.num_buckets if count < 2 or count % 2), None)
        if wrong is None and self.buckets > LARGEST:
            return [
                Problem(
                    ("num_buckets",),
                    f"a round has more than {LARGEST} buckets, more than any sequence has positions; give fewer",
                )
            ]
        if wrong is None:
            return []
        sentence = (
            f"{wrong} buckets given, but rotations come in pairs of opposite sign; "
            "give an even number, or a list of even ones"
        )
        return [Problem(("num_buckets",), sentence)]


class CollisionAttention(MaskedAttention, kind="collision_attention"):
    """YOSO: o_i = Σ_j p_ij^τ v_j over visible j, then o_i / |o_i|, p_ij = 1 - arccos(q_i · k_j / |q_i| |k_j|) / π.

    p^τ is the probability that τ random hyperplanes leave a query and a key on the same side, which hashing samples in
    the paper (Zeng et al. 2021). With ``gradient: bound`` its derivative by the cosine is replaced by the lower bound
    τ p^τ / 2, as in the paper, because the exact one is unbounded where q and k are parallel. Weights do not add up to
    1; the output of each head is normalised instead. ``value_convolution``: as in ``attention``.
    """

    mask: Mask = Full()
    hash_length: int = Field(default=9, gt=0, le=1000, description="number of hyperplanes, τ")
    gradient: Literal["bound", "exact"] = Field(
        default="bound", description="derivative of the weights: the paper's lower bound, or the exact one"
    )
    value_convolution: int | None = value_convolution_field()

    @property
    def growth(self) -> Growth:
        return STORED

    def problems(self) -> list[Problem]:
        problems = [*super().problems(), *convolution_problems(self, self.value_convolution)]
        if self.temperature != 1.0:
            problems.append(Problem(("temperature",), "cosines have no temperature; leave it out"))
        return problems
