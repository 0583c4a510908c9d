"""Comparison of a run with the last runs of the same recipe in the folder beside it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from qkv.lens.health.evidence import Evidence
from qkv.lens.health.verdict import Verdict
from qkv.runs.metrics import rows_of
from qkv.runs.storage.folder import SPEC
from qkv.runs.storage.identity import essence
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

RUNS = 5
"""Number of runs with which a run is compared."""
DEVIATIONS, WORSE = 3.0, 0.05
"""A run is worse if its validation loss exceeds the mean of the others by this many standard deviations, and by this
share of it.
"""
_MOST_FOLDERS = 500


def check_neighbours(e: Evidence) -> Verdict | None:
    """Compare the best validation loss with those of the last runs of the same recipe and number of steps, of any
    seed.
    """
    best = _best(e.folder)
    if best is None:
        return None
    runs = list(_neighbours(e))[:RUNS]
    values = [value for folder in runs if (value := _best(folder)) is not None]
    if not values:
        return None
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    limit = mean + max(DEVIATIONS * spread, WORSE * abs(mean))
    ill = best > limit
    names = ", ".join(folder.name for folder in runs)
    sentence = (
        f"the best validation loss is {best:.4g}, that of the last {len(values)} runs of this recipe {mean:.4g} ± "
        f"{spread:.2g} ({names}); above {limit:.4g} it is worse than these"
    )
    cure = f"qkv compare-runs {e.folder} {runs[0]}" if ill else ""
    source = "three standard deviations and 5 % of the mean"
    return Verdict("neighbours", "warning" if ill else "good", sentence, best, limit, source, cure)


def _neighbours(e: Evidence) -> Iterator[Path]:
    """Yield the other runs of the same recipe beside the run, the newest first."""
    parent = e.folder.resolve().parent
    folders = [path.parent for path in parent.glob(f"*/{SPEC}") if path.parent != e.folder.resolve()]
    mine = _fingerprint(e.recipe)
    for folder in sorted(folders, key=_age)[:_MOST_FOLDERS]:
        try:
            same = _fingerprint(read_recipe(folder)) == mine
        except UserError:
            continue
        if same:
            yield folder


def _age(folder: Path) -> float:
    try:
        return -(folder / SPEC).stat().st_mtime
    except OSError:
        return 0.0


def _fingerprint(recipe: Recipe) -> str:
    """Return what two recipes have in common that differ only in the seed."""
    content = essence(recipe)
    content["training"] = {k: v for k, v in content["training"].items() if k != "seed"}
    return json.dumps([content, recipe.training.steps, recipe.training.minutes], sort_keys=True)


def _best(folder: Path) -> float | None:
    """Return the lowest validation loss of a run."""
    try:
        values = [row["val_loss"] for row in rows_of(folder) if row.get("val_loss") is not None]
    except UserError:
        return None
    return min((value for value in values if math.isfinite(value)), default=None)
