"""Cost of one part of a model, as numbers that can be added. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce

FLOAT = 4
"""Bytes per number of training weights, gradients and the residual stream."""

Blocks = tuple[tuple["Share", ...], ...]
"""Costs of the branches of each block."""


@dataclass(frozen=True)
class Share:
    """Cost of a part. The costs of several parts can be added.

    parameters: number of parameters.   matrices: number of parameters in matrices of blocks.
    idle: number of parameters not used for one position, such as experts that are not selected.
    unread: number of parameters that a decoding step of all rows does not read, whichever experts they select.
    flops: FLOPs of the forward pass over the batch; a product of (m, k) and (k, n) counts 2 m k n, other operations 0.
    backward: FLOPs of the backward pass: the FLOPs of a product, for each of its factors that requires a gradient.
    attended: share of ``flops`` for attention scores and their products with values.
    masked: share of ``flops`` for masked pairs of positions.   skipped: share of ``masked`` that is not computed.
    ending: share of ``flops`` in the last product, if the backward pass does not need its result.
    step: FLOPs to decode one position per row after ``length`` positions.
    saved: bytes saved for the backward pass.
    scores: bytes of the attention matrices, if they are stored.
    state: bytes of the decoding state after ``length`` positions.
    calls: number of operators in a forward pass.   step_calls: number of operators in a decoding step, scaled up for
    the Python code around them.
    """

    parameters: int = 0
    matrices: int = 0
    idle: int = 0
    unread: int = 0
    flops: int = 0
    backward: int = 0
    attended: int = 0
    masked: int = 0
    skipped: int = 0
    ending: int = 0
    step: int = 0
    saved: int = 0
    scores: int = 0
    state: int = 0
    calls: int = 0
    step_calls: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def again(self) -> Share:
        """Return the cost of repeating the part with the same weights, which adds no parameters."""
        return replace(self, parameters=0, matrices=0, idle=0, unread=0)


def added(*shares: Share) -> Share:
    """Return the sum of ``shares``."""
    return reduce(Share.__add__, shares, Share())
