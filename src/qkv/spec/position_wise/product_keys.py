"""Spec of a memory with product keys, a position-wise branch."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.errors import Problem
from qkv.spec.parts import NoNorm, Norm


class ProductKeyMemory(Branch, kind="product_key_memory"):
    """Memory of n² learned values, of which each head reads the k with the largest scores (Lample et al. 2019).

    Key (i, j) is the concatenation of sub-key c_i, one of n, and sub-key c'_j, one of n others. With the halves q₁ and
    q₂ of a query, q · (c_i, c'_j) = q₁ · c_i + q₂ · c'_j, so that the k largest of the n² sums are among the k² sums of
    the k largest terms of each half. Output: Σ_h Σ_ij softmax(scores) V_ij with values shared by all heads.
    """

    num_keys: int = Field(default=32, gt=0, le=1 << 14, description="sub-keys of each half, n; there are n² values")
    top_k: int = Field(default=16, gt=0, description="values that a head reads at a position, k; at most n²")
    num_heads: int = Field(default=4, gt=0)
    key_dim: int | None = Field(default=None, gt=0, description="features of a key, even; default: width")
    query_norm: Norm = Field(default=NoNorm(), description="norm of the queries over all heads' features")

    @property
    def mixes(self) -> bool:
        return False

    def size(self, width: int) -> int:
        """Return the number of features of a key in a model of ``width`` features; even, as keys have two halves."""
        return self.key_dim or max(2, width // 2 * 2)

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.key_dim and self.key_dim % 2:
            problems.append(
                Problem(("key_dim",), f"{self.key_dim} features have no two equal halves; make the number even")
            )
        if self.top_k > self.num_keys**2:
            sentence = f"{self.top_k} values cannot be read of {self.num_keys} × {self.num_keys}"
            problems.append(Problem(("top_k",), f"{sentence}; give at most {self.num_keys**2}"))
        return problems

    def canonical(self, width: int) -> Self:
        return self.changed(key_dim=self.size(width))
