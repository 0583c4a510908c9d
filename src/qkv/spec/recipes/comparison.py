"""Spec of a comparison: a recipe, named changes of it, the same budget for all, seeds and learning rates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from qkv.spec.base import LARGEST_SEED, Seq, Spec
from qkv.spec.errors import Problem, SpecError
from qkv.spec.files.overrides import Assignment, assignments, override
from qkv.spec.files.shipped import shipped_comparisons
from qkv.spec.files.yaml_io import read_content, read_recipe
from qkv.spec.models.surgery import operated
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError, nearest

_NAME = re.compile(r"[\w+-]+")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
Rate = Annotated[float, Field(gt=0, le=1000)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class Comparison(Spec):
    """Comparison of models on one data set, under one budget.

    The learning rate of each entry is the best of ``rates`` on validation data, with the first seed; all seeds are then
    trained with it.
    """

    recipe: str = Field(
        min_length=1, description="recipe that the entries change: a file, or the name of a shipped one"
    )
    entries: dict[str, Seq[str]] = Field(
        min_length=1, description="dotted overrides of the recipe for each entry, by its name; none: the recipe itself"
    )
    equal: Literal["parameters", "flops", "steps", "time"] = Field(
        default="parameters",
        description="budget: parameters (within 1 %), FLOPs of training (numbers of steps), training.steps, or "
        "training.minutes",
    )
    baseline: str | None = Field(default=None, description="entry that others are tested against; default: the first")
    seeds: Seq[Seed] = Field(default=(1, 2, 3), min_length=1)
    rates: Seq[Rate] = Field(
        default=(0.5, 1.0, 2.0), min_length=1, description="factors of the recipe's learning rate that are tried"
    )
    metric: str | None = Field(
        default=None,
        min_length=1,
        description="metric that is compared and selects the learning rate, such as accuracy; default: the task's",
    )
    knobs: dict[str, str] = Field(
        default={},
        description="dotted path of the integer that resizes an entry for equal parameters, by name; default: the "
        "hidden size of feed-forward branches, else of all branches, else the width, if the entry does not set it",
    )
    overrides: Seq[str] = Field(default=(), description="dotted overrides of the recipe, for all entries")
    scale: int | None = Field(
        default=None,
        ge=2,
        le=10,
        description="number of sizes, each with twice the parameters of the one before, by the width or the entry's "
        "knob; each is trained for 1, 2 and 4 times the recipe's steps. null: no scaling",
    )
    fit: bool = Field(
        default=False,
        description="with scale: fit a law to the losses, and check its extrapolation by a model of twice the size, "
        "trained for twice as long",
    )
    quick: bool = Field(default=False, description="use the recipe's short form")

    def problems(self) -> list[Problem]:
        alone = Problem(("fit",), "a law is fitted to several sizes; give scale too, such as 4")
        return [*self._entry_problems(), *self._repeated(), *([alone] if self.fit and self.scale is None else [])]

    def _entry_problems(self) -> list[Problem]:
        wrong = next((name for name in self.entries if not _NAME.fullmatch(name)), None)
        if wrong is not None:
            sentence = f"{wrong!r} cannot name a folder; use letters, digits, '-', '_' and '+'"
            return [Problem(("entries",), sentence)]
        if self.baseline is not None and self.baseline not in self.entries:
            sentence = f"there is no entry {self.baseline!r}; {nearest(self.baseline, self.entries)}"
            return [Problem(("baseline",), sentence)]
        return [
            Problem(("knobs", name), f"there is no entry {name!r}; {nearest(name, self.entries)}")
            for name in self.knobs
            if name not in self.entries
        ]

    def _repeated(self) -> list[Problem]:
        seeds = [str(seed) for seed in self.seeds]
        lists = {"seeds": seeds, "rates": [factor_name(rate) for rate in self.rates]}
        return [
            Problem((field,), f"{value} is given twice; leave one of them out")
            for field, values in lists.items()
            for value in dict.fromkeys(values)
            if values.count(value) > 1
        ]

    @property
    def reference(self) -> str:
        """Name of the baseline."""
        return self.baseline or next(iter(self.entries))

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the entries that are tested against the baseline."""
        return tuple(name for name in self.entries if name != self.reference)


def factor_name(rate: float) -> str:
    """Format a factor of the learning rate as text, which also names a folder."""
    return f"{rate:g}"


def read_comparison(path: str | Path, changes: Iterable[tuple[str, Any]] = ()) -> Comparison:
    """Read a comparison from a YAML or JSON file, or the shipped comparison of that name.

    ``changes`` replaces fields; its ``overrides`` are appended to those of the file. A recipe that does not exist in
    the working directory is searched in the file's folder. Raises ``UserError``.
    """
    if not Path(path).exists():
        path = shipped_comparisons().get(str(path), path)
    data, lines, source = read_content(path)
    if "entries" not in data:
        sentence = (
            "this file is no comparison, which has the key 'entries'; to compare a recipe with changes of it, give them"
        )
        raise SpecError([Problem((), sentence)], source)
    settings = dict(changes)
    more = settings.pop("overrides", ())
    comparison = Comparison.parse({**data, **settings}, source, lines)
    comparison = comparison.changed(overrides=(*comparison.overrides, *more))
    beside = Path(source).parent / comparison.recipe
    return (
        comparison.changed(recipe=str(beside))
        if not Path(comparison.recipe).exists() and beside.exists()
        else comparison
    )


def entry_of(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse an entry written as ``name: override, override`` to (name, overrides). Raises ``UserError``.

    Commas inside brackets and quotes belong to an override.
    """
    name, colon, rest = text.partition(":")
    if "=" in name or not name.strip():
        raise UserError(f"{text!r} has not the form 'name: changes'; write it as in 'wide: model.width=256'")
    parts = tuple(part.strip() for part in _split(rest))
    if colon and rest.strip() and not all(parts):
        raise UserError(f"{text!r}: there is an empty change between two commas")
    return name.strip(), tuple(part for part in parts if part)


def _split(text: str) -> list[str]:
    """Split ``text`` at its commas outside of brackets and quotes."""
    parts, open_, quote = [""], list[str](), ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _PAIRS:
            open_.append(_PAIRS[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif letter == "," and not open_:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def base_recipe(comparison: Comparison) -> Recipe:
    """Return the recipe that the entries change. Raises ``UserError``, also if its candidates compete in heats."""
    recipe = read_recipe(comparison.recipe, comparison.overrides, comparison.quick)
    if recipe.candidates:
        sentence = "its candidates compete in heats, but an entry is one model; give the override candidates={}"
        raise UserError(f"{comparison.recipe}: {sentence}")
    return recipe


def entry_recipe(base: Recipe, name: str, overrides: Iterable[str]) -> Recipe:
    """Return the recipe of the entry ``name``. Raises ``SpecError`` that names the entry and the override at fault.

    In a path inside ``blocks``, an index means a layer, and a replaced branch keeps the fields that both kinds share,
    as in ``qkv swap``. If a path sets the list of blocks or the number of layers, an index means one of the blocks that
    the recipe lists.
    """
    try:
        chosen = list(assignments(overrides))
        chosen = [a if a.path[0] in Recipe.model_fields else a.under("model") for a in chosen]
        changed = operated(base, chosen) if _by_layer(chosen) else override(base, chosen)
    except SpecError as error:
        raise SpecError(error.problems, f"entry {name!r}: {error.source}".removesuffix(": "), error.lines) from None
    return changed.changed(name=name, quick={}, result=None, published=(), typed=(), shown=())


def _by_layer(chosen: Iterable[Assignment]) -> bool:
    """Return True if a path leads into blocks, and none replaces the list of blocks or their number."""
    paths = [assignment.path for assignment in chosen]
    return any("blocks" in path for path in paths) and not any(path[-1] in ("blocks", "num_layers") for path in paths)
