"""``Evidence``: what the checks of a run read."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.lens.health.records import Record
from qkv.runs.run import Run
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import Dataset
from qkv.tasks.task import Task


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
        return f"qkv train {spec} {' '.join(map(shlex.quote, overrides))} --out {folder}"

    def with_rate(self, factor: float) -> str:
        """Return the command that trains with the learning rate multiplied by ``factor``."""
        optimizer = self.recipe.training.optimizer
        changes = [f"training.optimizer.lr={optimizer.lr * factor:.3g}"]
        beside = getattr(optimizer, "others", None)
        if beside is not None:
            changes.append(f"training.optimizer.others.lr={beside.lr * factor:.3g}")
        return self.cure(*changes)
