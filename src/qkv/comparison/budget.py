"""Equal budgets for the entries of a comparison: resize models to equal numbers of parameters, or set numbers of steps
with equal FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from qkv.costs.cost import cost
from qkv.models.transformer import Transformer
from qkv.runs.start import with_start
from qkv.spec.errors import SpecError
from qkv.spec.files.overrides import Assignment, assignments, override
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import task_of_recipe

TOLERANCE = 0.01
"""Maximum relative difference between the numbers of parameters."""
KNOBS = ("model.blocks.feed_forward.hidden", "model.blocks.branches.hidden", "model.width")
"""Paths of settings that resize a model, tried in this order if an entry names none."""
_NEAR = 0.25
"""Maximum relative difference between the number of parameters that ``resized`` reaches and the target."""
_LARGEST, _STRIDE = 1 << 20, 256
Count = Callable[[int], int | None]


@dataclass(frozen=True)
class Sized:
    """Recipe of an entry, fitted to the budget.

    parameters: number of parameters of its model; step_flops: FLOPs of one update, None if the cost of a part is not
    implemented; change: override that fits the recipe to the budget, or "".
    """

    recipe: Recipe
    parameters: int
    step_flops: int | None
    change: str = ""


def sized(recipe: Recipe) -> Sized:
    """Count parameters and FLOPs of a recipe without changing it. Reads its data, which may determine sizes of the
    model.
    """
    full = filled(recipe)
    return Sized(recipe, parameters(full.model), _step_flops(full))


def filled(recipe: Recipe) -> Recipe:
    """Return a copy of the recipe with all sizes filled in that follow from its start and its data."""
    started = with_start(recipe)
    return task_of_recipe(started).sized(started)


def parameters(model: Model) -> int:
    """Count the parameters of a model, which is built on the meta device without using memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(model).parameters())


def with_parameters(
    name: str, recipe: Recipe, target: int, knob: str | None = None, changes: Iterable[str] = ()
) -> Sized:
    """Resize the recipe of the entry ``name`` to ``target`` parameters within ``TOLERANCE``, by changing the integer
    setting at the dotted path ``knob``.

    ``knob`` None: the first path in ``KNOBS`` with which this number is reached and that the entry's own ``changes`` do
    not set. Raises ``UserError`` if no value reaches the number.
    """
    full = filled(recipe)
    if _off(parameters(full.model), target) <= TOLERANCE:
        return Sized(recipe, parameters(full.model), _step_flops(full))
    tried: list[tuple[str, int, int]] = []
    fixed = {change.path[-1] for change in assignments(changes)}
    for path in (knob,) if knob else [path for path in KNOBS if path.rpartition(".")[2] not in fixed]:
        value, count = _nearest(_counter(full, path), target)
        if count and _off(count, target) <= TOLERANCE:
            change = Assignment.of(path, value)
            return Sized(override(recipe, [change]), count, _step_flops(override(full, [change])), change.text)
        tried += [(path, value, count)] if count else []
    if knob and not tried:
        override(full, [Assignment.of(knob, 1)])  # raises an error that names the path
    raise UserError(_unreachable(name, parameters(full.model), target, tried, knob))


def resized(name: str, recipe: Recipe, target: int, knob: str) -> Sized:
    """Resize the recipe of the entry ``name`` as closely to ``target`` parameters as the integer setting at the dotted
    path ``knob`` allows. Raises ``UserError`` if the nearest number differs by more than a quarter.
    """
    full = filled(recipe)
    value, count = _nearest(_counter(full, knob), target)
    if not count or _off(count, target) > _NEAR:
        override(full, [Assignment.of(knob, 1)])  # raises an error that names the path
        raise UserError(
            f"entry {name!r} cannot be resized to about {target:,} parameters: the nearest is {count:,} at "
            f"{knob}={value}; name another integer setting that changes its size in knobs"
        )
    change = Assignment.of(knob, value)
    return Sized(override(recipe, [change]), count, _step_flops(override(full, [change])), change.text)


def _unreachable(name: str, count: int, target: int, tried: Iterable[tuple[str, int, int]], knob: str | None) -> str:
    near = min(tried, key=lambda candidate: _off(candidate[2], target), default=None)
    nearest = f"the nearest is {near[2]:,} at {near[0]}={near[1]}" if near else "no setting changes its size"
    other = "another integer setting" if knob else "an integer setting"
    return (
        f"entry {name!r} has {count:,} parameters and cannot be resized to {target:,} within {TOLERANCE:.0%}: "
        f"{nearest}; "
        f"name {other} that changes its size in knobs, or change the entry"
    )


def _counter(full: Recipe, path: str) -> Count:
    """Return a function that counts the parameters with a value at ``path``, or returns None for a value that the spec
    rejects.
    """

    def count(value: int) -> int | None:
        try:
            return parameters(override(full, [Assignment.of(path, value)]).model)
        except SpecError:
            return None

    return count


def _nearest(count: Count, target: int) -> tuple[int, int]:
    """Search (value, count) with the count nearest to ``target``, where the count increases with the value; (0, 0) if
    no value is allowed.
    """
    counts: dict[int, int] = {}

    def first_from(low: int, high: int) -> int | None:
        """Return the smallest allowed value in a range."""
        for value in range(low, min(high, low + _STRIDE)):
            number = counts.get(value) or count(value)
            if number:
                counts[value] = number
                return value
        return None

    low, high = 0, 64
    while (value := first_from(high, 2 * high)) and counts[value] < target and high < _LARGEST:
        low, high = value, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        value = first_from(middle, high)
        low, high = (value, high) if value and counts[value] < target else (low, middle)
    best = min(counts, key=lambda value: _off(counts[value], target), default=0)
    return best, counts.get(best, 0)


def with_flops(name: str, recipe: Recipe, baseline: Sized) -> Sized:
    """Set the steps of the recipe of the entry ``name`` so that its training costs as many FLOPs as the training of the
    ``baseline``. Raises ``UserError`` if the cost of a part is not implemented.
    """
    before = sized(recipe)
    if not before.step_flops or not baseline.step_flops:
        missing = baseline.recipe.name if before.step_flops else name
        raise UserError(
            f"entry {missing!r} has a part whose FLOPs qkv cannot count; compare at equal parameters or time"
        )
    steps = round(baseline.recipe.training.steps * baseline.step_flops / before.step_flops)
    if not steps:
        raise UserError(f"one step of entry {name!r} costs more FLOPs than the whole training of the baseline")
    if steps == recipe.training.steps:
        return before
    changed = recipe.changed(training=recipe.training.changed(steps=steps))
    return Sized(changed, before.parameters, before.step_flops, f"training.steps={steps}")


def _step_flops(full: Recipe) -> int | None:
    training = full.training
    try:
        return cost(full.model, training.batch_size, training=training).train_flops
    except UserError:
        return None


def _off(count: int, target: int) -> float:
    return abs(count / target - 1)
