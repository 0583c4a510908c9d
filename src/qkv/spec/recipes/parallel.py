"""Spec of the axes along which the processes of a run share its work."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Spec
from qkv.spec.errors import Problem

REST = -1
"""Size of the axis that takes all processes that the other axes leave."""
AXES = ("replicate", "shard", "context")
"""Names of the axes, the outermost first: processes with consecutive ranks differ in the last one."""


class Parallel(Spec):
    """Axes along which several processes share the work of a run: sizes whose product is the number of processes.

    One process has the size 1 on each axis. The axes change how a step is computed, not what it computes.
    """

    replicate: int = Field(
        default=REST, ge=REST, description="processes with all weights, each with some rows of a batch; -1: the rest"
    )
    shard: int = Field(
        default=1, ge=REST, description="processes with a part of all weights, and some rows of a batch; -1: the rest"
    )
    context: int = Field(default=1, ge=REST, description="processes with a part of the positions of a row")
    context_by: Literal["ring", "heads"] = Field(
        default="ring", description="how attention meets keys of other processes: they travel, or heads are exchanged"
    )

    def problems(self) -> list[Problem]:
        sizes = {name: getattr(self, name) for name in AXES}
        problems = [
            Problem((name,), "an axis has a size of 1 or more, or -1 for the rest") for name in AXES if not sizes[name]
        ]
        if list(sizes.values()).count(REST) > 1:
            problems.append(Problem((), "only one axis can be -1, which takes all processes that the others leave"))
        if self.context != 1 and self.shard != 1:
            problems.append(
                Problem(("context",), "positions of a row are divided among processes with all weights; set shard=1")
            )
        return problems
