"""Heats: short runs of the models in ``recipe.candidates``, of which the best on validation is trained to the end.

    RUN/heats/results.json    result of each finished heat
    RUN/heats/NAME/           run of a heat, resumed if it was interrupted

As in successive halving (Jamieson & Talwalkar 2016), with one round: heats are cheap, and the winner starts anew, so
that its learning-rate schedule covers the rest of the time budget.
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
from qkv.runs.files import clear_errors, remove
from qkv.runs.folder import SPEC
from qkv.runs.metrics import TAKEN, rows_of
from qkv.runs.run import Run
from qkv.spec.errors import UserError
from qkv.spec.overrides import override, quick_form
from qkv.spec.recipe import Recipe
from qkv.system.files import write_file
from qkv.tasks.registry import task_of_recipe
from qkv.training import clock
from qkv.training.events import Ended, Event, Notice, OnEvent, Planned, Started, Stepped, Validated
from qkv.training.progress import FITTED

FOLDER = "heats"
_RESULTS = "results.json"
_SHARE = 0.4
"""Share of the time budget, or of the steps, of all heats together."""
_GROWTH, _WIDEST, _LONGER = 3, 4, 4
"""Time of a larger model's heat in that of the smaller one; largest factor of the width; factor of the final steps."""
Train = Callable[[Recipe, Path, OnEvent], Run]
_LATE = 0.85
"""Share of the steps after which the best validation is one of the last."""
_FEWEST = 20
"""Minimum number of steps of a heat without a time budget."""


@dataclass(frozen=True)
class Heat:
    """Result of one heat: lowest validation ``loss``, and the task's metric ``figure`` with the same weights.

    Both are None if the heat failed, as with a loss that is not finite. train: mean training loss of its last steps;
    whole: True if it made all steps of the recipe; late: True if its last validations were the best.
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


def choose(recipe: Recipe, folder: Path, tell: OnEvent, train: Train) -> tuple[Recipe, float]:
    """Run the heats of ``recipe`` that have no result in ``folder``; return (recipe of the winner, seconds that the
    heats took; 0 if the run has begun, since its checkpoints count them).

    ``train``: trains a recipe in a folder, without a final evaluation. Once the run has begun, no heat is repeated.
    Raises ``UserError`` if all heats fail, or if the run in ``folder`` was chosen from other candidates.
    """
    if not recipe.candidates:
        return recipe, 0.0
    for name in recipe.candidates:
        _winner(recipe, name)  # raises if its changes are wrong
    known, begun = read_heats(folder), (folder / SPEC).exists()
    if begun and {_sized(recipe, name)[0] for name in known} != recipe.candidates.keys():
        raise UserError(f"{folder} holds a run that was not chosen from these candidates; name another folder")
    for number, name in enumerate(recipe.candidates, 1):
        if name not in known:
            title = f"heat {number} of {len(recipe.candidates)}: {name}"
            known[name] = _run(recipe, name, title, folder / FOLDER, tell, train)
            _write(folder / FOLDER, known)
    while not begun and (larger := _larger(recipe, known)):
        known[larger] = _run(recipe, larger, f"one more heat: {larger}", folder / FOLDER, tell, train)
        _write(folder / FOLDER, known)
    if not (best := _best(known)):
        raise UserError(f"all heats failed: {', '.join(known)}; train one of the models alone with candidates={{}}")
    spent = 0.0 if begun else sum(heat.seconds for heat in known.values())
    return _longer(_winner(recipe, best), known[best]), spent


def _larger(recipe: Recipe, heats: Mapping[str, Heat]) -> str:
    """Name of one more heat, of a model twice as wide as the best and one layer deeper; "" for none.

    There is one if the best has made all of its steps without fitting the training rows, and time is left in the share
    of the heats, of which the larger model takes about three times as much.
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
    """(candidate, factor of its width) of the heat ``name``, such as ("sums", 2) of "sums_x2"."""
    base, found, factor = name.rpartition("_x")
    return (base, int(factor)) if found and name not in recipe.candidates and base in recipe.candidates else (name, 1)


def _widened(recipe: Recipe, factor: int) -> Recipe:
    """Recipe with a model ``factor`` times as wide, and one layer deeper for each doubling."""
    model, doublings = recipe.model, factor.bit_length() - 1
    layers = None if model.num_layers is None else model.num_layers + doublings
    return recipe.changed(model=model.changed(width=factor * model.width, num_layers=layers))


def _longer(recipe: Recipe, heat: Heat) -> Recipe:
    """Recipe with more steps, of which a time budget takes what fits, if the heat made all and was best at its end."""
    if recipe.training.minutes is None or not (heat.whole and heat.late):
        return recipe
    return recipe.changed(training=recipe.training.changed(steps=_LONGER * recipe.training.steps))


def _best(heats: Mapping[str, Heat]) -> str:
    """Name of the heat of lowest loss; "" if none has one."""
    losses = {name: heat.loss for name, heat in heats.items() if heat.loss is not None}
    return min(losses, key=lambda name: losses[name], default="")


def winner(folder: Path) -> str:
    """Name of the candidate that won the heats of the run in ``folder``; "" without heats."""
    return _best(read_heats(folder))


def _run(recipe: Recipe, name: str, title: str, place: Path, tell: OnEvent, train: Train) -> Heat:
    """Run or resume one heat, and remove its checkpoints."""
    began = clock.seconds()
    try:
        run = train(_heat(recipe, name), place / name, _progress(tell, title))
    except UserError as error:
        if not rows_of(place / name):  # not begun: the data or the recipe is at fault, in each heat alike
            raise
        tell(Notice(f"heat of {name} failed: {error}"))
        return Heat(None, None, 0, clock.seconds() - began)
    found = _result(run.metrics, _metric(recipe), run.recipe.training.steps)
    remove(place / name / "resume")
    if found.loss is not None:
        tell(Notice(f"heat of {name}: validation loss {fixed(found.loss)} after {duration(found.seconds)}"))
    return found


def _winner(recipe: Recipe, name: str) -> Recipe:
    """Recipe with the changes of the candidate ``name``, and no candidates."""
    base, factor = _sized(recipe, name)
    found = override(recipe.changed(candidates={}), quick_form(recipe.candidates[base]))
    found = found if factor == 1 else _widened(found, factor)
    others = ", ".join(other for other in recipe.candidates if other != base)
    said = f"{recipe.description.removesuffix('.')}; {name} won short heats against {others}." if others else ""
    return found.changed(description=said or recipe.description)


def _heat(recipe: Recipe, name: str) -> Recipe:
    """Short run of the candidate ``name``: its deep path alone, its share of time or steps, judged by the loss."""
    found, share = _winner(recipe, name), _SHARE / len(recipe.candidates)
    training = found.training
    minutes = None if training.minutes is None else share * training.minutes
    steps = training.steps if minutes else min(training.steps, max(_FEWEST, round(share * training.steps)))
    changes = {
        "minutes": minutes,
        "steps": steps,
        "validation": training.validation.changed(best="loss"),
        "checkpoints": training.checkpoints.changed(every=steps),
    }
    return found.changed(
        name=name, model=found.model.changed(wide=None), training=training.changed(**changes), quick={}
    )


def _progress(tell: OnEvent, title: str) -> OnEvent:
    """Handler that passes on the progress of a heat, with a title at its start, without its notices and files."""

    def some(event: Event) -> None:
        if isinstance(event, Started):
            tell(Notice(title))
        if isinstance(event, Started | Planned | Stepped | Validated | Ended):
            tell(event)

    return some


def _metric(recipe: Recipe) -> str:
    return task_of_recipe(recipe).metric


def _result(rows: Sequence[Mapping[str, Any]], metric: str, most: int) -> Heat:
    """Result of a heat by its rows of metrics; ``most``: steps of its recipe."""
    looks = [row for row in rows if math.isfinite(row.get("val_loss", math.nan))]
    best: Mapping[str, Any] = min(looks, key=lambda row: row["val_loss"], default={})
    steps = max((row["step"] for row in rows if "loss" in row), default=0)
    taken = [row[key] for key in ("time", TAKEN) for row in rows if row.get(key) is not None]
    losses = [row["loss"] for row in rows if row.get("loss") is not None and row["step"] > 0.9 * steps]
    train = sum(losses) / len(losses) if losses else None
    late = bool(best) and best["step"] >= _LATE * steps
    return Heat(
        best.get("val_loss"), best.get(f"val_{metric}"), steps, max(taken, default=0.0), train, steps >= most, late
    )


def read_heats(folder: Path) -> dict[str, Heat]:
    """Results of the heats of the run in ``folder``; empty without any. Raises ``UserError`` if they are damaged."""
    path = folder / FOLDER / _RESULTS
    try:
        return {name: Heat(**heat) for name, heat in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is damaged; remove it, and the heats run again") from None


def _write(place: Path, heats: Mapping[str, Heat]) -> None:
    path = place / _RESULTS
    with clear_errors(str(path)):
        place.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({name: asdict(heat) for name, heat in heats.items()}, indent=1).encode())


def section(folder: Path, metric: str) -> list[dict[str, Any]]:
    """Table of the heats of the run in ``folder`` for the report, the best first; empty without heats."""
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
    note = "Short runs, judged on the validation part. The first model was trained to the end."
    columns = ["model", "validation loss", f"validation {words(metric)}", "steps", "time"]
    return [{"kind": "heats", "title": "Heats", "note": note, "columns": columns, "rows": rows}]
