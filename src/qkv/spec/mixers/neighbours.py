"""Specs of mixers of neighbouring positions on a grid: the spatial shift, pooling, and MONet's products."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.models.growth import NEAR, POSITION_WISE, Growth
from qkv.spec.parts import Activation, LayerNorm, Norm

_MASK = "causal: shift half of the features from the previous position, 0 at the first; full: in all directions"


class SpatialShift(Branch, kind="spatial_shift"):
    """Spatial-shift branch of S²-MLP: W2 shift(φ(W1 x + b1)) + b2 (Yu et al. 2021).

    On a grid, the F features form four groups, each shifted by one position along the rows or the columns. In a
    sequence they form two groups, shifted from the previous and from the next position. At a border a position keeps
    its own features, as do positions that are not on the grid, such as a class token. If causal, the first half of the
    features comes from the previous position in the sequence, 0 at its start, and the second half is not shifted. A
    layer of S²-MLP is this branch and ``feed_forward``; ``token_shift`` is the shift without the first map.
    """

    hidden: int | None = Field(default=None, gt=0, description="features that are shifted, F; default: width")
    activation: Activation = "gelu"
    mask: Literal["full", "causal"] = Field(default="full", description=_MASK)

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    def hidden_at(self, width: int) -> int:
        """Return the number of shifted features in a model of ``width`` features."""
        return self.hidden or width

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width))


class Pooling(Branch, kind="pooling"):
    """Pooling: mean of the neighbours minus x, without weights (PoolFormer, Yu et al. 2022). Not causal.

    Neighbours are the ``size`` × ``size`` positions around a position on a grid, or ``size`` positions of a sequence,
    the position itself included; positions outside of the grid do not count. Positions that are not on the grid, such
    as a class token, get 0.
    """

    size: int = Field(default=3, gt=0, le=10_000, description="positions of a window along each axis")

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return False


class MONet(Branch, kind="monet"):
    """Mu-layer of MONet: E(norm(A x) ⊙ norm(B2 B1 x) + D x), without activation (Cheng et al. 2024).

    With ``shift``, the features of A x, B1 x and D x are shifted as in ``spatial_shift``; nothing else mixes positions.
    A block of MONet is one branch with a shift and one without, so that every other branch mixes positions. D = A in
    the published models. ``norm: none`` gives the plain products.
    """

    hidden: int | None = Field(default=None, gt=0, description="features of the product, F; default: 3 width")
    rank: int | None = Field(default=None, gt=0, description="rank of B = B2 B1; default: hidden / 8, as published")
    shift: bool = Field(default=True, description="shift features between neighbouring positions; else position-wise")
    norm: Norm = Field(default=LayerNorm(), description="norm of both factors")
    mask: Literal["full", "causal"] = Field(default="full", description=_MASK)

    @property
    def mixes(self) -> bool:
        return self.shift

    @property
    def growth(self) -> Growth:
        return NEAR if self.shift else POSITION_WISE

    @property
    def causal(self) -> bool:
        return not self.shift or self.mask == "causal"

    def sizes(self, width: int) -> tuple[int, int]:
        """Return (number of features of the product, rank) in a model of ``width`` features."""
        hidden = self.hidden or 3 * width
        return hidden, self.rank or max(1, hidden // 8)

    def canonical(self, width: int) -> Self:
        hidden, rank = self.sizes(width)
        return self.changed(hidden=hidden, rank=rank)
