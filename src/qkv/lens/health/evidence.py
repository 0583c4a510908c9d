"""``Evidence``: what the checks of a run read."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.lens.health.records import Record
from qkv.runs.run import Run
from qkv.spec.files.overrides import override
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset
from qkv.tasks.task import Task

_BRANCH = re.compile(r"(encoder\.)?blocks\.(\d+)\.branches\.(\d+)")


@dataclass(frozen=True)
class Evidence:
    """Everything about a run that the checks read.

    rows: of ``metrics.jsonl``.   records: of ``health.jsonl``.   inside: values of ``probe`` on held-out rows, with the
    best weights.   dataset: the run's data; None if it can no longer be opened.   run: None if the run has no weights.
    """

    folder: Path
    recipe: Recipe
    rows: Sequence[Mapping[str, Any]]
    records: Sequence[Record] = ()
    inside: Mapping[str, float] = field(default_factory=dict)
    run: Run | None = None
    task: Task | None = None
    dataset: Dataset | None = None

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Return (steps, values) of a metric over training; values that are not finite are left out."""
        rows = [row for row in self.rows if row.get(name) is not None and row.get("step") is not None]
        rows = [row for row in rows if math.isfinite(row[name])]
        return [int(row["step"]) for row in rows], [float(row[name]) for row in rows]

    @property
    def steps(self) -> int:
        """Number of updates so far."""
        return max(self.series("loss")[0], default=0)

    def cure(self, *overrides: str) -> str:
        """Return the command that trains the run's recipe with other settings, in another folder."""
        spec, folder = shlex.quote(str(self.folder / "spec.yaml")), shlex.quote(f"{self.folder}-cured")
        return " ".join(("qkv train", spec, *map(shlex.quote, overrides), "--out", folder))

    def part(self, place: str) -> tuple[str, Any] | None:
        """Return (dotted path in the recipe, spec) of the branch of a layer such as "blocks.3.branches.0"; None for
        other places.
        """
        match = _BRANCH.match(place)
        stack = self.recipe.model.encoder if match and match[1] else self.recipe.model
        if match is None or stack is None or not stack.blocks:
            return None
        block, branch = int(match[2]) % len(stack.blocks), int(match[3])
        path = f"model.{match[1] or ''}blocks.{block}.branches.{branch}"
        return path, stack.blocks[block].branches[branch]

    def cure_by(self, override_of_part: str) -> str:
        """Return the command with an override that fits the recipe, or else with a third of the learning rate."""
        try:
            override(self.recipe, [override_of_part])
        except UserError:
            return self.with_rate(1 / 3)
        return self.cure(override_of_part)

    def with_rate(self, factor: float) -> str:
        """Return the command that trains with the learning rate multiplied by ``factor``."""
        optimizer = self.recipe.training.optimizer
        changes = [f"training.optimizer.lr={optimizer.lr * factor:.3g}"]
        beside = getattr(optimizer, "others", None)
        if beside is not None:
            changes.append(f"training.optimizer.others.lr={beside.lr * factor:.3g}")
        return self.cure(*changes)
