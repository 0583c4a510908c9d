"""Compare runs: the settings in which their recipes differ, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.costs.cost import cost
from qkv.models.transformer import Transformer
from qkv.models.wide import build_wide
from qkv.report.comparison import Curve, comparison_report
from qkv.report.evaluation import words
from qkv.report.figures import duration, short
from qkv.runs.metrics import TAKEN, rows_of, steps_in_all
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import newest_state
from qkv.runs.storage.evaluation_file import read_evaluation
from qkv.runs.storage.files import read_metadata
from qkv.runs.storage.folder import SPEC, WEIGHTS
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.model import Model
from qkv.spec.models.wide import WidePath
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings
from qkv.tasks.registry import task_of_recipe
from qkv.training.environment import read_environment
from qkv.training.watch.record import Done, trained_flops

_COMPARED = ("data", "model", "wide", "start", "task", "training", "sample")
_MACHINE = ("qkv", "torch", "processor", "device", "threads")
_BESIDE_THE_POINT = ("seconds", "targets")
Values = tuple[Any, ...]


@dataclass(frozen=True)
class Facts:
    """Recipe, results and environment of one run, read from its folder without loading the model.

    rows: rows of its ``metrics.jsonl``.   figures: metrics of the best weights, "split.metric" -> value.   counts:
    steps, time in seconds, parameters, FLOPs.   machine: versions, processor, device and threads.
    """

    folder: Path
    recipe: Recipe
    rows: list[dict[str, Any]]
    figures: dict[str, float]
    counts: dict[str, Any]
    machine: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs. Each tuple of values has one value per run, in the order of ``runs``; None if the run has no
    such setting or metric.

    settings: dotted path -> values, where recipes differ.   figures: "split.metric" -> values.   counts: steps, best
    step, seconds, parameters, FLOPs.   machine: versions, processor, device and threads, where they differ.
    """

    runs: tuple[str, ...]
    settings: dict[str, Values]
    figures: dict[str, Values]
    counts: dict[str, Values]
    machine: dict[str, Values]
    curves: tuple[Curve, ...] = ()

    def tables(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """Return (title, rows) of each table; a row has a name and one value per run."""
        counts = [(name, *(_readable(name, value) for value in values)) for name, values in self.counts.items()]
        figures = [(_words_of(path), *values) for path, values in self.figures.items()]
        settings = [(path, *map(setting_text, values)) for path, values in self.settings.items()]
        machine = [(name, *map(setting_text, values)) for name, values in self.machine.items()]
        return [("settings that differ", settings), ("results", [*figures, *counts]), ("machines that differ", machine)]

    def plain(self) -> dict[str, Any]:
        """Return the content as plain data, for JSON."""
        parts = {name: getattr(self, name) for name in ("settings", "figures", "counts", "machine")}
        return {"runs": list(self.runs), **{n: {k: list(v) for k, v in part.items()} for n, part in parts.items()}}

    def report(self) -> str:
        """Build a self-contained HTML report: tables and learning curves."""
        return comparison_report(self.runs, self.tables(), self.curves, self.plain())


@with_usual_settings
def compare_runs(*runs: Run | str | Path) -> Comparison:
    """Compare two or more runs: the settings in which they differ, and their results.

    Results are the metrics of the best weights in the final evaluation, or in their validation during training if there
    is no final evaluation. Unfinished runs are allowed. Raises ``UserError`` for fewer than two runs, a duplicate run,
    or a folder without a run.
    """
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    if len(folders) < 2:
        raise UserError(f"{len(folders)} run given, but a comparison needs two or more run folders")
    twice = next((folder for i, folder in enumerate(folders) if folder.resolve() in _resolved(folders[:i])), None)
    if twice is not None:
        raise UserError(f"the run {twice} is given twice; name different runs")
    facts = [facts_of(folder) for folder in folders]
    names = tuple(str(folder) for folder in folders)
    curves = [Curve(str(run.folder), task_of_recipe(run.recipe).loss_unit, *validations(run.rows)) for run in facts]
    return Comparison(
        names,
        settings_that_differ([run.recipe for run in facts]),
        _side_by_side([run.figures for run in facts]),
        _side_by_side([run.counts for run in facts]),
        _different(_side_by_side([run.machine for run in facts])),
        tuple(curve for curve in curves if curve.steps),
    )


def facts_of(folder: Path) -> Facts:
    """Read recipe and results of the run in ``folder``. Raises ``UserError`` if it holds no run."""
    if not (folder / SPEC).is_file():
        raise UserError(f"{folder} is not a run folder: it holds no {SPEC}")
    recipe, rows, state = read_recipe(folder), rows_of(folder), newest_state(folder / "resume")
    weights = folder / WEIGHTS
    best = int(read_metadata(weights).get("step", 0)) if weights.is_file() else None
    standing: dict[str, Any] = state["standing"] if state else {}
    done = Done(*(int(standing.get(name, 0)) for name in ("tokens", "rows", "positions", "sources")))
    counts = {
        "steps": max((int(row["step"]) for row in rows if row.get("loss") is not None), default=0),
        "planned steps": steps_in_all(rows, recipe.training.steps),
        "best step": best,
        "training seconds": max((row["time"] for row in rows if row.get("time") is not None), default=None),
        "seconds in all": next((row[TAKEN] for row in reversed(rows) if TAKEN in row), None),
        "parameters": _parameters(recipe),
        "training FLOPs": trained_flops(recipe, done),
    }
    machine = read_environment(folder / "resume") or {}
    return Facts(folder, recipe, rows, _figures(folder, rows, best), counts, {n: machine.get(n) for n in _MACHINE})


def settings_that_differ(recipes: Sequence[Recipe]) -> dict[str, Values]:
    """Return the settings in which ``recipes`` differ: dotted path -> values.

    Parts of different kinds have different options. Such an option is only listed if at least one recipe sets it to a
    value other than its default.
    """
    whole = [dict(_flat(_compared(recipe.to_dict()))) for recipe in recipes]
    flat_settings = [dict(_flat(_compared(recipe.essential()))) for recipe in recipes]
    paths = dict.fromkeys(path for settings in whole for path in settings)
    differing = _different({path: tuple(settings.get(path) for settings in whole) for path in paths})
    named = {path for settings in flat_settings for path in settings}
    return {path: values for path, values in differing.items() if path in named or not _above(path) & differing.keys()}


def _above(path: str) -> set[str]:
    """Return the paths of the parts that contain the setting at ``path``: "a" and "a.b" for "a.b.c"."""
    parts = path.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def _compared(content: dict[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in _COMPARED if name in content}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) for all leaves of plain data. The kind of a part has the path of the part, such as
    ``model.norm`` instead of ``model.norm.kind``.
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, path if key == "kind" and path else f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for i, item in enumerate(value):
            yield from _flat(item, f"{path}.{i}")
    else:
        yield path, value


def _figures(folder: Path, rows: list[dict[str, Any]], best: int | None) -> dict[str, float]:
    """Return the metrics of the weights of step ``best``, from the final evaluation or else from the validation at that
    step: "split.metric" -> value.
    """
    evaluation = read_evaluation(folder, best) if best is not None else None
    if evaluation is not None:
        splits = {split: entry["figures"] for split, entry in evaluation["splits"].items()}
    else:
        row = next((row for row in reversed(rows) if row.get("step") == best and row.get("val_loss") is not None), {})
        splits = {"validation": {n.removeprefix("val_"): v for n, v in row.items() if n.startswith("val_")}}
    return {
        f"{split}.{name}": value
        for split, figures in splits.items()
        for name, value in figures.items()
        if value is not None and name not in _BESIDE_THE_POINT
    }


def _parameters(recipe: Recipe) -> int | None:
    try:
        count = cost(recipe.model, training=recipe.training).parameters
        return count if recipe.wide is None else count + _of_wide(recipe.model, recipe.wide)
    except UserError:  # sizes that follow from the data are not filled in yet
        return None


def _of_wide(model: Model, part: WidePath) -> int:
    """Count the parameters of the wide path ``part`` beside ``model``."""
    with torch.device("meta"):
        return sum(p.numel() for p in build_wide(part, Transformer(model).head.num_outputs).parameters())


def validations(rows: list[dict[str, Any]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return (steps, losses) of the validations in ``rows``, the rows of a run's ``metrics.jsonl``."""
    pairs = [(row["step"], row["val_loss"]) for row in rows if row.get("val_loss") is not None]
    return tuple(step for step, _ in pairs), tuple(value for _, value in pairs)


def _side_by_side(tables: Sequence[dict[str, Any]]) -> dict[str, Values]:
    """Return key -> tuple of the values in all ``tables``, None where a table lacks the key; keys whose values are all
    None are omitted.
    """
    names = dict.fromkeys(name for table in tables for name in table)
    rows = {name: tuple(table.get(name) for table in tables) for name in names}
    return {name: values for name, values in rows.items() if any(value is not None for value in values)}


def _different(table: dict[str, Values]) -> dict[str, Values]:
    return {name: values for name, values in table.items() if any(value != values[0] for value in values)}


def _resolved(folders: Iterable[Path]) -> set[Path]:
    return {folder.resolve() for folder in folders}


def _words_of(path: str) -> str:
    split, _, name = path.partition(".")
    return f"{words(name)}, {split}"


def _readable(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return duration(value) if "seconds" in name else short(value) if "FLOPs" in name else value


def setting_text(value: Any) -> str | None:
    """Format a setting as in YAML: true, false, numbers and words without quotes, lists in brackets."""
    if isinstance(value, list):
        return f"[{', '.join(str(setting_text(item)) for item in value)}]"
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
