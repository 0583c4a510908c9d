"""Spec of quantised weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Spec
from qkv.spec.errors import Problem

_MULTIPLE = 32


class Quantization(Spec):
    """Weights in ``bits`` 16 (bf16), 8 or 4, with one scale per ``group`` of a row's weights.

    Weights of linear layers have this precision; embedding tables, and the output matrix of a language model, have at
    least 8 bits and one scale per row. Norms, biases and other tensors are not quantised.
    """

    bits: Literal[16, 8, 4] = 8
    group: int | None = Field(
        default=None,
        ge=0,
        le=65536,
        description="weights per scale, a multiple of 32; 0: one scale per row; default: 32 with 4 bits, else 0",
    )

    @property
    def size(self) -> int:
        """Number of weights per scale; 0: one scale per row."""
        return (_MULTIPLE if self.bits == 4 else 0) if self.group is None else self.group

    def problems(self) -> list[Problem]:
        if self.group and (self.bits == 16 or self.group % _MULTIPLE):
            allowed = "bf16 has no scales; leave it out" if self.bits == 16 else f"give a multiple of {_MULTIPLE}, or 0"
            return [Problem(("group",), f"{self.group} weights per scale; {allowed}")]
        return []
