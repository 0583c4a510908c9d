"""Recipe and run folder for a source of training: a recipe, a run, a text, a table of examples, data in memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.api.given import RunPlace, training_files
from qkv.choosing.verbs import data_fields, split_settings, task_named
from qkv.spec.files.given import is_kept_text, kept_name
from qkv.spec.files.overrides import override
from qkv.spec.files.shipped import is_shipped, shipped
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.choosing.tables import TableFound

SPEC_SUFFIXES = (".yaml", ".yml", ".json")
RUNS = Path("runs")
_OF_TEXTS = ("validation", "test")
"""Fields of ``qkv.spec.data.Data`` that also apply to running text, not only to tables."""


def find_recipe(
    source: Any,
    overrides: Iterable[str] = (),
    quick: bool = False,
    out: str | Path | None = None,
    resume: bool = True,
    task: str | None = None,
    start: str | Path | None = None,
    adapt: str | None = None,
    **data: Any,
) -> tuple[Recipe, Path]:
    """Find the recipe of ``source``, apply dotted ``overrides``, and return it with the run's folder.

    ``source`` is a recipe (``.yaml``, ``.yml``, ``.json``, or the name of one that ships with the package), a run
    folder, or a text: a file or the name of a known data set. For a text, a recipe is chosen automatically; with
    ``resume``, the recipe of an existing run on it is used. ``quick``: the recipe's shorter form, for a try. The run's
    folder is ``out``, by default ``runs/`` and the recipe's name.

    With a ``task``, such as "classification" or its verb "classify", ``source`` is a table of examples: a file, two
    texts "a.txt | b.txt", or the name of a known data set, and a recipe for the task is chosen. ``data``: fields of
    ``qkv.spec.data.Data``: columns, validation, test, bad_rows, format; or columns by the names of the verb's options,
    such as ``label="stars"``. ``start``: a run or a published checkpoint to fine-tune; ``adapt``: method of fine-tuning
    ("whole", "head", "lora(8)").

    ``source`` may also be data in memory, which is written into the run's folder: see ``train``. Raises ``UserError``.
    """
    if task is not None:
        chosen, data = split_settings(task, data)
        overrides, task, data = [*chosen, *overrides], task_named(task), data_fields(task, data)
    with training_files(source, task, place_of(out, quick), data) as (file, folder, fields):
        if task is None:
            return _recipe_of(file, overrides, quick, folder, resume, start, adapt, fields)
        begun = None if start is None else str(start)
        return _recipe_of_table(task, {"source": str(file), **fields}, overrides, quick, folder, resume, begun, adapt)


def _recipe_of(
    source: str | Path,
    overrides: Iterable[str],
    quick: bool,
    out: Path | None,
    resume: bool,
    start: str | Path | None,
    adapt: str | None,
    data: dict[str, Any],
) -> tuple[Recipe, Path]:
    """Find the recipe and run folder of a source without a task: a recipe, a run or a text."""
    text = is_text(source)
    if (start is not None or adapt is not None) and not text:
        raise UserError("'start' and 'adapt' apply to data, not to recipes; in a recipe, set start and training.adapt")
    if adapt is not None and start is None:
        raise UserError("'adapt' says how a model is fine-tuned; name the model with 'start'")
    wrong = next((name for name in data if not text or name not in _OF_TEXTS), None)
    if wrong is not None:
        raise UserError(f"{wrong!r} applies to tables of examples; name the task too, such as task='classification'")
    _refuse_table(source)
    path = Path(source)
    if not text:
        recipe = read_recipe(path, overrides, quick)
        return recipe, out or (path if path.is_dir() else folder_of(recipe.name or path.stem, quick))
    folder = out or folder_of(path.stem, quick)
    begun = None if start is None else (str(start), adapt)
    return _recipe_of_text(str(source), overrides, quick, folder, resume, data, begun), folder


def is_text(source: str | Path) -> bool:
    """Return whether ``source`` is a text file or the name of a data set, and not a recipe or a folder."""
    return Path(source).suffix not in SPEC_SUFFIXES and not Path(source).is_dir() and not is_shipped(source)


def _refuse_table(source: str | Path) -> None:
    """Raise ``UserError`` if ``source`` is a table of examples, which needs a task."""
    table = table_without_task(source)
    if table is not None:
        guess = table.task or "classification"
        raise UserError(f"{str(source)!r} is {table.described}, not a text; name the task, such as task={guess!r}")


def table_without_task(source: str | Path) -> TableFound | None:
    """Return the table of examples, which needs a task, if ``source`` is one; None for a recipe, run folder or text."""
    from qkv.data.records.named import TABLES

    exists = Path(source).expanduser().is_file() or source in TABLES
    if not exists or (not is_text(source) and Path(source).suffix != ".json") or is_kept_text(str(source)):
        return None
    from qkv.choosing.tables import found_table

    return found_table(source)


def folder_of(name: str, quick: bool) -> Path:
    """Return the default folder of a run called ``name``; quick and full runs have separate folders."""
    return RUNS / f"{name}-quick" if quick else RUNS / name


def place_of(out: str | Path | None, quick: bool) -> RunPlace:
    """Return the location of a run on data in memory, before the name of the run is known."""
    return RunPlace(RUNS, "-quick" if quick else "", None if out is None else Path(out))


def _recipe_of_table(
    task: str,
    data: dict[str, Any],
    overrides: Iterable[str],
    quick: bool,
    out: Path | None,
    resume: bool,
    start: str | None,
    adapt: str | None,
) -> tuple[Recipe, Path]:
    from qkv.choosing.automatic_task import automatic_task, name_of

    folder = out or folder_of(name_of(data["source"]), quick)
    if resume and (folder / "spec.yaml").is_file():
        # A newly chosen recipe could differ. The data settings must equal the run's, which is checked on resuming.
        previous = read_recipe(folder)
        if (previous.data.source, previous.task.kind, previous.start.checkpoint) == (data["source"], task, start):
            changes = [*([f"training.adapt={adapt}"] if adapt else []), *overrides]
            return override(previous.changed(data=previous.data.changed(**data)), changes), folder
        there = f"the task {previous.task.kind!r} on {previous.data.source!r}" + (
            f" from {previous.start.checkpoint!r}" if previous.start.checkpoint else ""
        )
        here = f"{task!r} on {data['source']!r}" + (f" from {start!r}" if start else "")
        raise UserError(f"{folder} holds a run of {there}, not of {here}; name another folder")
    return _named(automatic_task(task, data, overrides, quick, start=start, adapt=adapt), folder), folder


def _named(recipe: Recipe, folder: Path) -> Recipe:
    """Name the recipe after its folder if its data was passed in memory, without a file name."""
    return recipe.changed(name=folder.name) if kept_name(recipe.data.source) else recipe


def _recipe_of_text(
    source: str,
    overrides: Iterable[str],
    quick: bool,
    folder: Path,
    resume: bool,
    data: dict[str, Any],
    begun: tuple[str, str | None] | None,
) -> Recipe:
    """Find or choose the recipe for a text. begun: (model to fine-tune, method); None: train a new model."""
    from qkv.data.corpora.named import NAMES

    if not Path(source).exists() and source not in NAMES:
        here = [entry.name for entry in Path().iterdir() if entry.is_file()]
        raise UserError(
            f"there is no file {source!r}, and no recipe or known data set of that name; "
            f"{nearest(source, [*here, *NAMES, *shipped()])}"
        )
    if resume and (folder / "spec.yaml").is_file():
        # A newly chosen recipe could differ, because the text may have grown and the machine is measured anew.
        previous = read_recipe(folder)
        if previous.data.source == source and previous.start.checkpoint == (begun and begun[0]):
            return override(previous.changed(data=previous.data.changed(**data)), overrides)
    from qkv.choosing.automatic import automatic
    from qkv.choosing.finetune_text import finetuned_on_text

    recipe = finetuned_on_text(source, *begun, overrides, quick) if begun else automatic(source, overrides, quick)
    return _named(recipe.changed(data=recipe.data.changed(**data)), folder)
