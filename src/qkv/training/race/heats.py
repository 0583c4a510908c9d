"""Heats: short runs of the models in ``recipe.candidates``; the model with the lowest validation loss is then trained
to the end.

    RUN/heats/results.json    result of each finished heat
    RUN/heats/NAME/           run of a heat, resumed if it was interrupted

This is successive halving (Jamieson & Talwalkar 2016) with one round: heats are short, and the winner is trained from
the beginning, so that its learning-rate schedule covers the rest of the time budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.report.evaluation import words
from qkv.report.figures import duration, fixed
from qkv.runs.metrics import TAKEN, rows_of
from qkv.runs.run import Run
from qkv.runs.storage.files import clear_errors, remove
from qkv.runs.storage.folder import SPEC
from qkv.spec.files.overrides import override, quick_form
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.system.world import ALONE, World
from qkv.tasks.registry import task_of_recipe
from qkv.training import clock
from qkv.training.watch.events import Ended, Event, Notice, OnEvent, Planned, Started, Stepped, Validated
from qkv.training.watch.progress import FITTED

FOLDER = "heats"
_RESULTS = "results.json"
_SHARE = 0.4
"""Share of the time budget, or of the steps, that all heats together may take."""
_GROWTH, _WIDEST, _LONGER = 3, 4, 4
"""Time of a larger model's heat relative to the smaller model's heat; maximum factor by which the width grows; factor
of the number of steps in ``_longer``.
"""
Train = Callable[[Recipe, Path, OnEvent], Run]
_LATE = 0.85
"""The best validation of a heat counts as late if it comes after this share of the steps."""
_FEWEST = 20
"""Minimum number of steps of a heat without a time budget."""


@dataclass(frozen=True)
class Heat:
    """Result of one heat: lowest validation ``loss``, and the task's metric ``figure`` with the same weights.

    Both are None if the heat failed, for example with a non-finite loss. train: mean training loss over the last tenth
    of its steps; whole: True if the heat made all steps of its recipe; late: True if its best validation was one of the
    last.
    """

    loss: float | None
    figure: float | None
    steps: int
    seconds: float
    train: float | None = None
    whole: bool = False
    late: bool = False

    @property
    def fitted(self) -> bool:
        """True if the training loss is far below the validation loss, so that a larger model would not help."""
        return self.loss is None or self.train is None or self.train < FITTED * self.loss


def choose(recipe: Recipe, folder: Path, tell: OnEvent, train: Train, world: World = ALONE) -> tuple[Recipe, float]:
    """Run the heats of ``recipe`` that have no stored result in ``folder``; return (recipe of the winner, seconds of
    all heats).

    If the final training has begun, no heat is run, and the seconds are 0, because the checkpoints include them.
    ``train``: function that trains a recipe in a folder, without a final evaluation; ``world``: the processes that
    train. Raises ``UserError`` if all heats fail, or if the run in ``folder`` was chosen from other candidates.
    """
    if not recipe.candidates:
        return recipe, 0.0
    for name in recipe.candidates:
        _winner(recipe, name)  # raises UserError for invalid changes
    seconds, begun = world.lead(lambda: (read_heats(folder), (folder / SPEC).exists()))
    if begun and {_sized(recipe, name)[0] for name in seconds} != recipe.candidates.keys():
        raise UserError(f"{folder} holds a run that was chosen from other candidates; name another folder")

    def compete(name: str, title: str) -> None:
        began, place = clock.seconds(), folder / FOLDER / name
        run = _run(_heat(recipe, name), place, _progress(tell, title), train)
        seconds[name] = world.lead(lambda: _judge(run, recipe, place, began, tell))
        world.lead(lambda: _write(folder / FOLDER, seconds))

    for number, name in enumerate(recipe.candidates, 1):
        if name not in seconds:
            compete(name, f"heat {number} of {len(recipe.candidates)}: {name}")
    while not begun and (larger := _larger(recipe, seconds)):
        compete(larger, f"one more heat: {larger}")
    if not (best := _best(seconds)):
        raise UserError(f"all heats failed: {', '.join(seconds)}; train one of the models alone with candidates={{}}")
    spent = 0.0 if begun else sum(heat.seconds for heat in seconds.values())
    return _longer(_winner(recipe, best), seconds[best]), spent


def _larger(recipe: Recipe, heats: Mapping[str, Heat]) -> str:
    """Return the name of one more heat, with a model twice as wide as the best and one layer deeper; "" if no heat
    follows.

    A heat follows if the best model made all its steps without fitting the training rows, and if the heats' share of
    the time budget suffices. The heat of the larger model is expected to take about three times as long.
    """
    best, minutes = _best(heats), recipe.training.minutes
    if not best or minutes is None or heats[best].fitted or not heats[best].whole:
        return ""
    base, factor = _sized(recipe, best)
    name = f"{base}_x{2 * factor}"
    spent = sum(heat.seconds for heat in heats.values())
    room = spent + _GROWTH * heats[best].seconds <= 60 * _SHARE * minutes
    return name if room and name not in heats and factor < _WIDEST else ""


def _sized(recipe: Recipe, name: str) -> tuple[str, int]:
    """Split the name of a heat into (candidate, factor of its width): "sums_x2" into ("sums", 2)."""
    base, separator, factor = name.rpartition("_x")
    return (
        (base, int(factor)) if separator and name not in recipe.candidates and base in recipe.candidates else (name, 1)
    )


def _widened(recipe: Recipe, factor: int) -> Recipe:
    """Return the recipe with a model ``factor`` times as wide, and one layer deeper for each doubling."""
    model, doublings = recipe.model, factor.bit_length() - 1
    layers = None if model.num_layers is None else model.num_layers + doublings
    return recipe.changed(model=model.changed(width=factor * model.width, num_layers=layers))


def _longer(recipe: Recipe, heat: Heat) -> Recipe:
    """Return the recipe with ``_LONGER`` times as many steps, if the heat made all its steps and its best validation
    was late. Only with a time budget, which then limits the steps.
    """
    if recipe.training.minutes is None or not (heat.whole and heat.late):
        return recipe
    return recipe.changed(training=recipe.training.changed(steps=_LONGER * recipe.training.steps))


def _best(heats: Mapping[str, Heat]) -> str:
    """Return the name of the heat with the lowest loss; "" if no heat has a loss."""
    losses = {name: heat.loss for name, heat in heats.items() if heat.loss is not None}
    return min(losses, key=lambda name: losses[name], default="")


def winner(folder: Path) -> str:
    """Return the name of the heat that won in the run folder ``folder``; "" without heats."""
    return _best(read_heats(folder))


def _run(heat: Recipe, place: Path, tell: OnEvent, train: Train) -> Run | UserError:
    """Run or resume one heat in the folder ``place``; return its run, or the error that ended it."""
    try:
        return train(heat, place, tell)
    except UserError as error:
        return error


def _judge(run: Run | UserError, recipe: Recipe, place: Path, began: float, tell: OnEvent) -> Heat:
    """Return the result of the heat in the folder ``place``, and remove its checkpoints."""
    if isinstance(run, UserError):
        if not rows_of(place):  # it failed before the first step: data or recipe are at fault, in all heats
            raise run
        tell(Notice(f"heat of {place.name} failed: {run}"))
        return Heat(None, None, 0, clock.seconds() - began)
    heat = _result(run.metrics, _metric(recipe), run.recipe.training.steps)
    remove(place / "resume")
    if heat.loss is not None:
        tell(Notice(f"heat of {place.name}: validation loss {fixed(heat.loss)} after {duration(heat.seconds)}"))
    return heat


def _winner(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe with the changes of the candidate ``name`` applied, and without candidates."""
    base, factor = _sized(recipe, name)
    winner_recipe = override(recipe.changed(candidates={}), quick_form(recipe.candidates[base]))
    winner_recipe = winner_recipe if factor == 1 else _widened(winner_recipe, factor)
    losers = ", ".join(other for other in recipe.candidates if other != base)
    description = f"{recipe.description.removesuffix('.')}; {name} won short heats against {losers}." if losers else ""
    return winner_recipe.changed(description=description or recipe.description)


def _heat(recipe: Recipe, name: str) -> Recipe:
    """Build the recipe of the heat ``name``: without a wide path, with its share of the time or steps, and with the
    loss as validation metric.
    """
    winner_recipe, share = _winner(recipe, name), _SHARE / len(recipe.candidates)
    training = winner_recipe.training
    minutes = None if training.minutes is None else share * training.minutes
    steps = training.steps if minutes else min(training.steps, max(_FEWEST, round(share * training.steps)))
    changes = {
        "minutes": minutes,
        "steps": steps,
        "validation": training.validation.changed(best="loss"),
        "checkpoints": training.checkpoints.changed(every=steps),
    }
    return winner_recipe.changed(name=name, wide=None, training=training.changed(**changes), quick={})


def _progress(tell: OnEvent, title: str) -> OnEvent:
    """Return an event handler that forwards the progress events of a heat to ``tell``, announces ``title`` when
    training starts, and drops all other events, such as notices.
    """

    def some(event: Event) -> None:
        if isinstance(event, Started):
            tell(Notice(title))
        if isinstance(event, Started | Planned | Stepped | Validated | Ended):
            tell(event)

    return some


def _metric(recipe: Recipe) -> str:
    return task_of_recipe(recipe).metric


def _result(rows: Sequence[Mapping[str, Any]], metric: str, most: int) -> Heat:
    """Compute the result of a heat from the ``rows`` of its metrics; ``most``: number of steps of its recipe."""
    looks = [row for row in rows if math.isfinite(row.get("val_loss", math.nan))]
    best: Mapping[str, Any] = min(looks, key=lambda row: row["val_loss"], default={})
    steps = max((row["step"] for row in rows if "loss" in row), default=0)
    times = [row[key] for key in ("time", TAKEN) for row in rows if row.get(key) is not None]
    losses = [row["loss"] for row in rows if row.get("loss") is not None and row["step"] > 0.9 * steps]
    train = sum(losses) / len(losses) if losses else None
    late = bool(best) and best["step"] >= _LATE * steps
    return Heat(
        best.get("val_loss"), best.get(f"val_{metric}"), steps, max(times, default=0.0), train, steps >= most, late
    )


def read_heats(folder: Path) -> dict[str, Heat]:
    """Read the results of the heats of the run in ``folder``; empty without heats. Raises ``UserError`` if they are
    damaged.
    """
    path = folder / FOLDER / _RESULTS
    try:
        return {name: Heat(**heat) for name, heat in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is damaged; remove it to run the heats again") from None


def _write(place: Path, heats: Mapping[str, Heat]) -> None:
    path = place / _RESULTS
    with clear_errors(str(path)):
        place.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({name: asdict(heat) for name, heat in heats.items()}, indent=1).encode())


def section(folder: Path, metric: str) -> list[dict[str, Any]]:
    """Build the table of the heats of the run in ``folder`` for the report, the best first; empty without heats."""
    heats = read_heats(folder)
    order = sorted(heats, key=lambda name: (heats[name].loss is None, heats[name].loss))
    rows = [
        [
            name,
            *("failed" if figure is None else fixed(figure) for figure in (heats[name].loss, heats[name].figure)),
            f"{heats[name].steps:,}",
            duration(heats[name].seconds),
        ]
        for name in order
    ]
    if not rows:
        return []
    note = "Short runs, compared by their loss on the validation split. The first model was trained to the end."
    columns = ["model", "validation loss", f"validation {words(metric)}", "steps", "time"]
    return [{"kind": "heats", "title": "Heats", "note": note, "columns": columns, "rows": rows}]
