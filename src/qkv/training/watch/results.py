"""Results of finished runs: read them from the run folders and record them in the recipe file."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qkv.runs.metrics import rows_of, steps_in_all
from qkv.runs.start import with_start
from qkv.runs.storage.checkpoint import newest_state
from qkv.runs.storage.evaluation_file import read_evaluation
from qkv.runs.storage.files import clear_errors, read_tensors
from qkv.runs.storage.folder import SPEC, WEIGHTS
from qkv.runs.storage.identity import MADE_WITH, check_unedited, difference
from qkv.spec.files.formats import downgraded
from qkv.spec.files.plain import plain
from qkv.spec.files.yaml_edit import InLine, with_keys
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.results import Figure, Result
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tasks.registry import task_of_recipe
from qkv.training.environment import read_environment

_DECIDING = ("data", "model", "wide", "start", "task", "training", "sample")
_FREE = ("seed", "checkpoints", "sample_every", "tensorboard")
_STACKS = (("model",), ("model", "encoder"))
_FROM_DATA = (
    ("model", "frontend", "vocab_size"),
    ("model", "encoder", "frontend", "vocab_size"),
    ("model", "head", "num_classes"),
    *(("model", "head", name) for name in ("horizon", "channels", "positions")),
    *(("model", "head", name) for name in ("grid", "cell", "height", "width", "features")),
    *((*stack, "frontend", name) for stack in _STACKS for name in ("features", "covariates", "steps")),
    ("wide", "steps"),
    ("wide", "count"),
    ("data", "columns"),
    ("data", "decimal"),
    ("data", "processor", "dates"),
    ("task", "mean"),
    ("task", "deviation"),
    ("task", "no_answer"),
    ("task", "class_weights"),
)
"""Paths of the recipe fields that training fills in from the data if the recipe omits them."""
_BESIDE_THE_POINT = ("seconds",)
_DIGITS = 6


@dataclass(frozen=True)
class Finished:
    """Recipe, metrics and environment of a finished run, read from its folder. ``corpus``: hash of its data; ``step``:
    number of steps; ``best_step``: step of the best weights; ``figures``: split -> metric -> value, of the best
    weights.
    """

    folder: Path
    recipe: Recipe
    corpus: str
    step: int
    best_step: int
    minutes: float
    figures: dict[str, dict[str, float]]
    notes: tuple[str, ...]
    environment: dict[str, Any]


def result_digest(recipe: Recipe) -> str:
    """Compute the SHA-256 of the settings that determine a recipe's results: data, model, start, task, training and
    sampling, without the seed.
    """
    essential = downgraded(recipe.essential())
    content = {name: value for name, value in essential.items() if name in _DECIDING}
    content["training"] = {name: value for name, value in content.get("training", {}).items() if name not in _FREE}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def stale(path: str | Path) -> str:
    """Return a warning if the result in the recipe file ``path`` was recorded for a different version of the recipe,
    else "".
    """
    recipe = read_recipe(path)
    if recipe.result is None or recipe.result.recipe == result_digest(
        read_recipe(path, quick=recipe.result.form == "quick")
    ):
        return ""
    return (
        f"{path}: the recipe was changed after its result was recorded; train it again and record it, "
        "or undo the change"
    )


def record(runs: Sequence[str | Path], path: str | Path) -> Result:
    """Record the result of finished ``runs`` in their recipe file ``path``. The runs may only differ in their seeds.

    Comments and other keys are kept, except entries of ``typed`` (results entered by hand) that the new result
    replaces. Raises ``UserError`` if a run has another recipe or is unfinished, if seeds repeat, or if the runs used
    different data; the file is then unchanged.
    """
    path = Path(path)
    results = sorted((finished(Path(run)) for run in runs), key=lambda run: run.recipe.training.seed)
    if not results:
        raise UserError("no run folder was given; give the run folders, then the recipe")
    form = _form(results, path)
    _check_alike(results)
    recipe = read_recipe(path)
    if form == "quick" and recipe.result is not None and recipe.result.form == "full":
        raise UserError(
            f"{path} already has a result of the full recipe, which the result of a short run would replace; "
            "remove the key 'result' first"
        )
    result = _result(results, form, result_digest(read_recipe(path, quick=form == "quick")))
    _write(path, recipe, result)
    return result


def finished(folder: Path) -> Finished:
    """Read recipe, metrics and environment of the finished run in ``folder``. Raises ``UserError`` if the folder holds
    no run, or the run is unfinished or not yet evaluated.
    """
    if not (folder / SPEC).is_file():
        raise UserError(f"{folder} is not a run folder: it holds no {SPEC}")
    recipe, state, rows = read_recipe(folder), newest_state(folder / "resume"), rows_of(folder)
    step = int(state["standing"]["step"]) if state else 0
    patience = recipe.training.validation.patience
    standing = state["standing"] if state else {}
    goes_on = recipe.training.minutes is not None and standing.get("fitting", False)
    waited = patience is not None and int(standing.get("stale", 0)) >= patience and not goes_on
    go_on = f"resume it first: qkv train {folder}"
    steps = steps_in_all(rows, recipe.training.steps)
    if state is None or not (folder / WEIGHTS).is_file() or not (step >= steps or waited):
        raise UserError(f"the run in {folder} is not finished: {step:,} of {steps:,} steps are done; {go_on}")
    metadata = read_tensors(folder / WEIGHTS)[1]
    check_unedited(metadata.get(MADE_WITH), recipe, folder)
    best_step = int(metadata.get("step", 0))
    evaluation = read_evaluation(folder, best_step)
    if evaluation is None and task_of_recipe(recipe).evaluates:
        raise UserError(f"the weights of the run in {folder} have no final evaluation yet; {go_on}")
    minutes = max((row["time"] for row in rows if row.get("time") is not None), default=0.0) / 60
    if minutes <= 0:
        raise UserError(f"the run in {folder} does not record its duration: its metrics.jsonl has no times")
    environment = read_environment(folder / "resume")
    if environment is None:
        raise UserError(
            f"the run in {folder} does not record the machine, versions and date of its training; train it again"
        )
    figures, notes = _measured(evaluation, rows, best_step, folder)
    return Finished(folder, recipe, state["corpus"], step, best_step, minutes, figures, notes, environment)


def _measured(
    evaluation: dict[str, Any] | None, rows: Sequence[dict[str, Any]], step: int, folder: Path
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (split -> metrics, notes) of the best weights, from the final evaluation, or from their validation during
    training if there is none.
    """
    if evaluation is not None:
        notes = dict.fromkeys(note for split in evaluation["splits"].values() for note in split["notes"])
        return {split: _numbers(entry["figures"]) for split, entry in evaluation["splits"].items()}, tuple(notes)
    row = next((row for row in reversed(rows) if row.get("step") == step and row.get("val_loss") is not None), None)
    if row is None:
        raise UserError(
            f"the run in {folder} holds the weights of step {step:,}, but no validation at this step is recorded"
        )
    return {
        "validation": _numbers(
            {name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_")}
        )
    }, ()


def _numbers(figures: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value) for name, value in figures.items() if value is not None and name not in _BESIDE_THE_POINT
    }


def _form(runs: Sequence[Finished], path: Path) -> str:
    """Return the form of the recipe file ``path`` in which all ``runs`` were trained: "full", or "quick" with the
    shorter settings of its key ``quick``. Raises ``UserError`` naming the first field that differs.
    """
    forms = {"full": read_recipe(path)}
    if forms["full"].quick:
        forms["quick"] = read_recipe(path, quick=True)
    for form, recipe in forms.items():
        if not any(_other(run, recipe) for run in runs):
            return form
    run, problem = next((run, problem) for run in runs if (problem := _other(run, forms["full"])))
    short = _other(run, forms["quick"]) if "quick" in forms else ""
    beside = f" (and in its short form, --quick: {short})" if short and short != problem else ""
    raise UserError(f"the run in {run.folder} was not trained with {path}: {problem}{beside}")


def _other(run: Finished, recipe: Recipe) -> str:
    """Describe the first field in which the recipe of ``run`` differs from ``recipe``; "" if they are equal."""
    if run.recipe.start != recipe.start:
        return difference({"start": run.recipe.start.essential()}, {"start": recipe.start.essential()}) or ""
    theirs, ours = _deciding_fields(run.recipe), _deciding_fields(with_start(recipe, run.recipe))
    for place in _FROM_DATA:
        _fill_in(ours, theirs, place)
    if recipe.sample == Recipe.model_fields["sample"].default:  # the task has set its own sampling defaults
        ours["sample"] = theirs["sample"]
    return difference(theirs, ours) or ""


def _deciding_fields(recipe: Recipe) -> dict[str, Any]:
    content = recipe.changed(model=_unsized(recipe.model)).to_dict()
    content["training"] = {name: value for name, value in content["training"].items() if name not in _FREE}
    return {name: content[name] for name in _DECIDING}


def _unsized(model: Model) -> Model:
    """Return a copy of ``model`` whose input front end lacks the sizes that its processor determines."""
    if model.encoder and model.encoder.frontend.processor:
        return model.changed(encoder=model.encoder.changed(frontend=model.encoder.frontend.unsized()))
    return model.changed(frontend=model.frontend.unsized()) if model.frontend.processor else model


def _fill_in(ours: Any, theirs: Any, place: Sequence[str]) -> None:
    for name in place[:-1]:
        ours, theirs = (tree.get(name) if isinstance(tree, dict) else None for tree in (ours, theirs))
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return
    setting, value = ours.get(place[-1], 0), theirs.get(place[-1])
    partly = isinstance(setting, dict) and isinstance(value, dict) and setting.items() <= value.items()
    if setting is None or partly or (setting == "balanced" and isinstance(value, dict)):
        ours[place[-1]] = value


def _check_alike(runs: Sequence[Finished]) -> None:
    seeds = [run.recipe.training.seed for run in runs]
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise UserError(f"two of the runs have the seed {twice}; give each run its own seed")
    other = next((run for run in runs if run.corpus != runs[0].corpus and not _draws(run)), None)
    if other is not None:
        raise UserError(
            f"the runs in {runs[0].folder} and {other.folder} were trained on different data, "
            "so their figures are not comparable"
        )
    names = {split: set(figures) for split, figures in runs[0].figures.items()}
    if any({split: set(figures) for split, figures in run.figures.items()} != names for run in runs):
        raise UserError(
            "the runs do not have the same metrics: they were evaluated by different versions or with different "
            "libraries"
        )


def _draws(run: Finished) -> bool:
    """Return True if the task generates its data from the seed, so that each seed has different data."""
    return run.recipe.task.reads == "nothing"


def _result(runs: Sequence[Finished], form: str, digest: str) -> Result:
    first = runs[0]
    figures = {
        split: {name: _figure([run.figures[split][name] for run in runs]) for name in names}
        for split, names in first.figures.items()
    }
    facts = [run.environment for run in runs]
    versions = {
        name: ", ".join(dict.fromkeys(str(fact.get(name, "unknown")) for fact in facts))
        for name in ("qkv", "torch", "python")
    }
    return Result.parse(
        {
            "form": form,
            "recipe": digest,
            "data": first.corpus,
            "seeds": [run.recipe.training.seed for run in runs],
            "steps": [run.step for run in runs],
            "best_steps": [run.best_step for run in runs],
            "minutes": float(f"{fmean(run.minutes for run in runs):.3g}"),
            "figures": figures,
            "notes": list(dict.fromkeys(note for run in runs for note in run.notes)),
            "machine": list(dict.fromkeys(_machine(fact) for fact in facts)),
            "versions": versions,
            "date": max(str(fact.get("date", "")) for fact in facts),
        }
    )


def _figure(values: Sequence[float]) -> Figure:
    rounded = [float(f"{value:.{_DIGITS}g}") for value in values]
    if len(rounded) == 1:
        return Figure(mean=rounded[0])
    mean, spread = (float(f"{value:.{_DIGITS}g}") for value in (fmean(rounded), max(rounded) - min(rounded)))
    return Figure(mean=mean, spread=spread, by_seed=tuple(rounded))


def _machine(facts: dict[str, Any]) -> str:
    """Describe the computer in words, such as ``AMD EPYC, 2 threads; cpu, 2 used``, without host name or paths."""
    return (
        f"{facts.get('processor', platform.machine())}; {facts.get('device', 'cpu')}, {facts.get('threads', '?')} used"
    )


def _write(path: Path, recipe: Recipe, result: Result) -> None:
    """Write ``result`` into the recipe file atomically, and remove the figures entered by hand that it replaces."""
    written = _plain_result(result)
    entries = [typed for typed in recipe.typed if result.form == "quick" or not result.figure(typed.figure)]
    values: dict[str, Any] = {"result": written}
    if len(entries) != len(recipe.typed):
        values["typed"] = [typed.essential() for typed in entries] or None
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        data = {**json.loads(text), **values}
        text = (
            json.dumps({name: value for name, value in data.items() if value is not None}, indent=2, ensure_ascii=False)
            + "\n"
        )
    else:
        text = with_keys(text, values, str(path))
    with clear_errors(str(path)):
        write_file(path, text.encode())


def _plain_result(result: Result) -> dict[str, Any]:
    content = {name: value for name, value in plain(result).items() if value not in ([], None)}
    content["figures"] = {
        split: {name: InLine(figure.essential()) for name, figure in figures.items()}
        for split, figures in result.figures.items()
    }
    content["versions"] = InLine(content["versions"])
    return content
