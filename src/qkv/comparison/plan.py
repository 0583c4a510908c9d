"""Plan of a comparison: the recipe and folder of every run, which depend only on the comparison's file.

OUT/plan.json                      recipe, parameters and FLOPs of every entry
OUT/ENTRY/rate-FACTOR/seed-SEED/   an ordinary run folder, and the outcome of the run
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.comparison.budget import Sized, sized, with_flops, with_parameters
from qkv.runs.storage.files import clear_errors
from qkv.runs.storage.identity import difference
from qkv.spec.base import Spec
from qkv.spec.files.formats import upgraded
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison, base_recipe, entry_recipe, factor_name
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tasks.registry import task_of_recipe

FILE = "plan.json"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison: entry, factor of its learning rate, seed, recipe and folder."""

    entry: str
    rate: float
    seed: int
    recipe: Recipe
    folder: Path

    @property
    def title(self) -> str:
        """Name of the run, for messages."""
        return f"{self.entry}, rate × {factor_name(self.rate)}, seed {self.seed}"


@dataclass(frozen=True)
class RunPlan:
    """All entries of a comparison, fitted to its budget, and the folder of its runs."""

    comparison: Comparison
    entries: Mapping[str, Sized]
    folder: Path

    @property
    def metric(self) -> str:
        """Name of the metric by which the entries are compared."""
        return self.comparison.metric or task_of_recipe(self.entries[self.comparison.reference].recipe).metric

    def trials(self) -> list[PlannedRun]:
        """Return the runs that select the learning rates: every entry and rate with the first seed."""
        compared = self.comparison
        return [self.run(name, rate, compared.seeds[0]) for name in self.entries for rate in compared.rates]

    def rest(self, rates: Mapping[str, float]) -> list[PlannedRun]:
        """Return the runs with all seeds but the first, seed by seed, at the learning rates chosen for the entries."""
        return [self.run(name, rate, seed) for seed in self.comparison.seeds[1:] for name, rate in rates.items()]

    def run(self, name: str, rate: float, seed: int) -> PlannedRun:
        """Return the run of the entry ``name`` with ``seed``, at ``rate`` times its learning rate."""
        recipe = self.entries[name].recipe
        training = recipe.training.changed(optimizer=scaled(recipe.training.optimizer, rate), seed=seed)
        place = self.folder / name / f"rate-{factor_name(rate)}" / f"seed-{seed}"
        return PlannedRun(name, rate, seed, recipe.changed(training=training), place)


def plan_of(comparison: Comparison, folder: Path, base: Recipe | None = None) -> RunPlan:
    """Plan a comparison in ``folder``, or read the plan stored there if it was made for the same recipes.

    ``base``: recipe that the entries change; default: the recipe that the comparison names. Raises ``UserError`` if an
    entry is invalid or cannot be fitted to the budget, or if the folder holds runs of another recipe under its name.
    """
    base = base_recipe(comparison) if base is None else base
    recipes = {name: entry_recipe(base, name, changes) for name, changes in comparison.entries.items()}
    _check_budget(comparison, recipes)
    request = {
        "equal": comparison.equal,
        "reference": comparison.reference,
        "knobs": comparison.knobs,
        "entries": {name: recipe.to_dict() for name, recipe in recipes.items()},
    }
    previous = _read(folder)
    if previous and previous["asked"] == request:
        entries = {name: _parsed(fields) for name, fields in previous["entries"].items()}
    else:
        entries = _within_budget(comparison, recipes)
        _check_same(previous, entries, folder)
        _write(folder, request, entries)
    return RunPlan(comparison, entries, folder)


def scaled(optimizer: Any, factor: float) -> Any:
    """Return a copy of an optimiser's spec with every learning rate in it multiplied by ``factor``."""
    return optimizer.changed(**dict(_scaled_fields(optimizer, factor)))


def _scaled_fields(optimizer: Spec, factor: float) -> Iterator[tuple[str, Any]]:
    for name in type(optimizer).model_fields:
        value = getattr(optimizer, name)
        if name == "lr":
            yield name, value * factor
        elif isinstance(value, Spec) and "lr" in type(value).model_fields:
            yield name, scaled(value, factor)


def _check_budget(comparison: Comparison, recipes: Mapping[str, Recipe]) -> None:
    """Raise ``UserError`` if the budget of the comparison contradicts ``training.minutes`` or ``training.steps`` of the
    recipes.
    """
    for name, recipe in recipes.items():
        minutes, base = recipe.training.minutes, recipes[comparison.reference].training.minutes
        if comparison.equal == "time" and minutes is None:
            raise UserError(f"entry {name!r}: equal time needs training.minutes; give it in overrides or in the recipe")
        if comparison.equal in ("flops", "steps") and minutes is not None:
            budget = "FLOPs" if comparison.equal == "flops" else "steps"
            sentence = (
                f"with training.minutes, runs may end before their {budget} are equal; set it to null in overrides"
            )
            raise UserError(f"entry {name!r}: {sentence}")
        steps, baseline_steps = recipe.training.steps, recipes[comparison.reference].training.steps
        if comparison.equal == "steps" and steps != baseline_steps:
            raise UserError(
                f"entry {name!r} has training.steps={steps}, but the baseline {baseline_steps}; give all entries "
                "the same number"
            )
        if minutes != base:
            raise UserError(
                f"entry {name!r} has training.minutes={minutes}, but the baseline {base}; give all the same number"
            )


def _within_budget(comparison: Comparison, recipes: Mapping[str, Recipe]) -> dict[str, Sized]:
    reference = comparison.reference
    baseline = sized(recipes[reference])

    def fit(name: str, recipe: Recipe) -> Sized:
        if name == reference:
            return baseline
        if comparison.equal == "parameters":
            knob, changes = comparison.knobs.get(name), comparison.entries[name]
            return with_parameters(name, recipe, baseline.parameters, knob, changes)
        return with_flops(name, recipe, baseline) if comparison.equal == "flops" else sized(recipe)

    return {name: fit(name, recipe) for name, recipe in recipes.items()}


def _check_same(previous: Mapping[str, Any] | None, entries: Mapping[str, Sized], folder: Path) -> None:
    """Raise ``UserError`` if ``folder`` holds runs of another recipe under the name of an entry."""
    for name, entry in entries.items():
        before = previous["entries"].get(name) if previous else None
        if before and (folder / name).exists():
            change = difference(before["recipe"], entry.recipe.to_dict())
            if change:
                raise UserError(f"{folder} holds runs of another {name!r}: {change}; name another folder or entry")


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / FILE
    try:
        content = json.loads(path.read_bytes())
        return content if content["asked"] and content["entries"] else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path} is damaged; remove it to plan the comparison again") from None


def _write(folder: Path, request: Mapping[str, Any], entries: Mapping[str, Sized]) -> None:
    content = {name: {**vars(entry), "recipe": entry.recipe.to_dict()} for name, entry in entries.items()}
    with clear_errors(f"the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / FILE, json.dumps({"asked": request, "entries": content}, indent=1).encode())


def _parsed(fields: Mapping[str, Any]) -> Sized:
    return Sized(**{**fields, "recipe": Recipe.parse(upgraded(fields["recipe"]), FILE)})
