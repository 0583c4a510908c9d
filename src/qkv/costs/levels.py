"""Cost of each level of a model that reads a row at several scales."""

from __future__ import annotations

from typing import NamedTuple

from qkv.costs.cost import Cost, cost
from qkv.report.figures import short
from qkv.spec.model import Model

LEVEL_COLUMNS = ["positions per vector", "vectors", "FLOPs, forward", "share"]
"""Column titles of the table of levels."""


class LevelCost(NamedTuple):
    """Cost of a level: positions of a window, vectors of a row, and FLOPs added to those of finer levels."""

    factor: int
    vectors: int
    flops: int


def level_costs(counted: Cost) -> list[LevelCost]:
    """Return the cost of each level, the finest first; empty for a model without scales.

    FLOPs are those of a forward pass over the batch without masked scores. Those of the finest level are the cost of
    the model without the others; their sum is that of the model.
    """
    segmentation = counted.model.segmentation
    factors, costs, before = segmentation.level_factors if segmentation else (), list[LevelCost](), 0
    for count, factor in enumerate(factors, 1):
        model = _of_factors(counted.model, factors[:count])
        smaller = cost(model, counted.batch_size, counted.length, counted.precision, counted.training)
        costs.append(LevelCost(factor, counted.length // factor, smaller.needed_flops - before))
        before = smaller.needed_flops
    return costs


def level_rows(counted: Cost) -> list[list[object]]:
    """Return the rows of the table of levels; empty for a model without scales."""
    total = max(1, counted.needed_flops)
    return [
        [level.factor, level.vectors, short(level.flops), f"{level.flops / total:.1%}"]
        for level in level_costs(counted)
    ]


def _of_factors(model: Model, factors: tuple[int, ...]) -> Model:
    """Return ``model`` with the levels of ``factors`` only, in masks too."""
    blocks = tuple(
        block.changed(branches=tuple(branch.with_factors(factors) for branch in block.branches))
        for block in model.blocks
    )
    assert model.segmentation is not None
    return model.changed(blocks=blocks, segmentation=model.segmentation.with_factors(factors))
