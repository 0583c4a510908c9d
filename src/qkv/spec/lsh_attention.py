"""Attention between positions whose keys a hash puts near each other."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field

from qkv.spec.base import LARGEST, LARGEST_SEED
from qkv.spec.branches import Masked
from qkv.spec.errors import Problem
from qkv.spec.sparse_attention import SparseAttention


def _as_factors(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(cast("list[Any]", value))
    return (value,) if isinstance(value, int) else value


Factors = Annotated[tuple[int, ...], BeforeValidator(_as_factors, json_schema_input_type=int | list[int])]
"""A number, or a list of numbers whose product it is."""


class LSHAttention(Masked, SparseAttention, kind="lsh_attention"):
    """softmax(q_i · k_j, j in a chunk near i's) V with k_j = q_j / |q_j|: one map makes queries and keys (Reformer, Kitaev et al. 2020).

    In each of ``num_hashes`` rounds a random rotation R of each head puts a vector into the bucket argmax(qR ; -qR); positions are sorted by
    bucket and cut into chunks, and a position meets its own chunk, ``chunks_before`` it and ``chunks_after`` it. The rounds are joined by
    the sums of their exponentials. A position sees itself only where it sees nothing else.

    A row that is no longer than a chunk meets all of itself, and so does every row where a state is remembered: decoding is attention over
    the whole state, what hashing approximates. So the outputs of a longer row that is read at once are not those of decoding it. Which keys
    it meets depends on the whole row, as it is sorted as a whole, though under a causal mask no later key or value is read. A task that
    writes rows longer than a chunk is therefore refused, unless ``inexact_decoding`` is true.
    The paper divides what is met in several rounds by how often it is; here, as in the published models, it counts each time.
    """

    num_hashes: int = Field(default=2, gt=0, description="rounds of hashing; more come nearer to full attention")
    num_buckets: Factors = Field(
        default=(32,),
        min_length=1,
        max_length=16,
        description="of a round, even; or factors of it, each even, for which less is multiplied",
    )
    chunk_length: int = Field(default=64, gt=0, description="positions of a chunk; a row that is no longer is not hashed")
    chunks_before: int = Field(default=1, ge=0)
    chunks_after: int = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="of the rotations, which are not learned and the same in every call")
    bias: bool = False
    inexact_decoding: bool = Field(
        default=False, description="train to write rows longer than a chunk, although decoding them computes something else"
    )

    @property
    def buckets(self) -> int:
        """How many buckets a round has."""
        return prod(self.num_buckets)

    @property
    def met(self) -> int:
        """How many chunks a position meets in a round, its own among them."""
        return self.chunks_before + 1 + self.chunks_after

    @property
    def exact_length(self) -> int | None:
        return self.chunk_length

    @property
    def inexactness_accepted(self) -> bool:
        return self.inexact_decoding

    def problems(self) -> list[Problem]:
        wrong = next((count for count in self.num_buckets if count < 2 or count % 2), None)
        if wrong is None and self.buckets > LARGEST:
            return [
                Problem(("num_buckets",), f"a round of more than {LARGEST} buckets has more than any sequence has positions; give fewer")
            ]
        if wrong is None:
            return []
        sentence = f"{wrong} buckets cannot be halves of a rotation and of its opposite; give an even number, or a list of even ones"
        return [Problem(("num_buckets",), sentence)]
