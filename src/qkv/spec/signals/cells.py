"""Specs for the cells of a table's column of numbers or of categories: processor and front end."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.data import Decimal
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Frontend
from qkv.spec.processors import Processor

MOST_CATEGORIES = 1000
"""Upper bound of the categories of a column."""


class Cell(Processor, kind="cell"):
    """Number or category of one column of a table; a cell may be empty.

    A number x is read as (x - mean) / deviation and its place among the quantiles of the training split, Σ of one value
    in [0, 1] for each bin (piecewise linear encoding, Gorishniy et al. 2022). A category is read as one of those that
    the training split has, or as another one. Empty cells have a value of their own.
    """

    of_cells = True

    decimal: Decimal | None = Field(default=None, description="mark before decimals; filled in from the data")
    mean: float | None = Field(default=None, description="of a column of numbers; filled in from the data")
    deviation: float = Field(default=1.0, gt=0)
    edges: Seq[float] = Field(default=(), description="borders of the bins of numbers; filled in from the data")
    categories: Seq[str] = Field(
        default=(), max_length=MOST_CATEGORIES, description="values of a column of categories; filled in from the data"
    )

    @property
    def num_simple(self) -> int | None:
        if self.mean is None:
            return 2 + len(self.categories) if self.categories else None
        return 2 + max(0, len(self.edges) - 1)

    def problems(self) -> list[Problem]:
        if self.mean is not None and self.categories:
            return [Problem(("categories",), "a column holds numbers or categories; give a mean, or categories")]
        if any(left >= right for left, right in zip(self.edges, self.edges[1:], strict=False)):
            return [Problem(("edges",), "borders of bins must increase")]
        return []


class CellVector(Frontend, kind="cell"):
    """Cell of a table -> one position x = W f + b of its features f (FT-Transformer, Gorishniy et al. 2021)."""

    processor: ClassVar[type[Processor] | None] = Cell
    features: int | None = Field(default=None, gt=0, le=MOST_CATEGORIES + 2, description="default: the processor's")

    @property
    def num_positions(self) -> int | None:
        return 1

    def fitted(self, processor: Processor) -> Self:
        if self.features not in (None, processor.num_simple):
            sentence = f"{self.features} given, but the processor has {processor.num_simple}; leave it out"
            raise SpecError([Problem(("features",), sentence)])
        return self.changed(features=processor.num_simple)

    def unsized(self) -> Self:
        return self.changed(features=None)
