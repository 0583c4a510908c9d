"""Data in memory as arguments of the public functions: it is written to files, and then used like any other file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.choosing.verbs import data_fields
from qkv.data.given.files import write_splits
from qkv.data.given.plain import sort
from qkv.data.given.tables import ALLOWED, are_splits, is_column, is_frame, is_given, splits_of
from qkv.data.records.images.pictures import is_picture
from qkv.data.records.sounds.cells import is_sound_in_memory
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.runs.run import Run
    from qkv.spec.recipe import Recipe

_SPEC = "spec.yaml"
_HELD_OUT = ("validation", "test")
SPLIT_NAMES = ("train", *_HELD_OUT)
"""Splits of a run's data."""


class RunPlace(NamedTuple):
    """Location of a run's folder: ``out`` if the user gives it, else ``runs``/name, with ``suffix`` appended."""

    runs: Path
    suffix: str
    out: Path | None

    def folder(self, name: str) -> Path:
        """Return the folder of a run called ``name``."""
        return self.out or self.runs / f"{name}{self.suffix}"


@contextmanager
def training_files(
    source: Any, task: str | None, place: RunPlace, fields: Mapping[str, Any]
) -> Iterator[tuple[Any, Path | None, dict[str, Any]]]:
    """Context manager that writes data in memory to files in the folder of the run that is trained on it.

    ``source``: data in memory, a mapping of such data by split, or the name of a file. ``fields``: fields of
    ``qkv.spec.data.Data``; ``validation`` and ``test`` may be data in memory too. Yields (source, folder, fields) with
    the names of files in place of data; without data in memory, they are unchanged. By default, the folder is named
    after the task and the digest of the data. For a task, unusable rows are refused by default, since they can be
    corrected in memory.

    If the training fails before the run's spec names the files, they are removed again. Raises ``UserError``.
    """
    if not isinstance(source, (str, os.PathLike)) and not is_given(source):
        raise UserError(f"{sort(source)} is given to train on; give a recipe, the name of a file, or {ALLOWED}")
    splits: dict[str, Any] = splits_of(source) if is_given(source) else {"train": source}
    for split in _HELD_OUT:
        if fields.get(split) is not None:
            if split in splits:
                raise UserError(f"{split!r} is given twice: as an argument and as a split of the data")
            splits[split] = fields[split]
    if not any(map(is_given, splits.values())):
        yield source, place.out, dict(fields)
        return

    def folder(name: str) -> Path:
        return place.folder(f"{task or 'text'}-{name[:8]}" if is_given(source) else Path(source).stem)

    with write_splits(splits, place.out or place.runs, folder, task is None, _SPEC) as files:
        evaluation_splits = {split: files.sources[split] for split in _HELD_OUT if split in splits}
        settings = (
            {**fields, **evaluation_splits} if task is None else {"bad_rows": "refuse", **fields, **evaluation_splits}
        )
        yield files.sources["train"], files.folder, settings


@contextmanager
def recipe_on(recipe: Recipe, data: Any, folder: Path, fields: Mapping[str, Any]) -> Iterator[Recipe]:
    """Context manager that writes data in memory into the run's ``folder``, and yields ``recipe`` changed to read it.

    ``fields``: further fields of ``qkv.spec.data.Data``. Raises ``UserError`` for a task that reads no data.
    """
    reads = recipe.reads
    if reads == "nothing":
        raise UserError(f"the task {recipe.task.kind!r} draws its own data; leave 'data' out")
    task = None if reads == "text" else recipe.task.kind
    arguments = fields if task is None else data_fields(task, fields)
    with training_files(data, task, RunPlace(folder, "", folder), arguments) as (source, _, settings):
        defaults = {"validation": None, "test": None, "format": None}
        yield recipe.changed(data=recipe.data.changed(**{**defaults, **settings, "source": str(source)}))


@contextmanager
def temporary_file(data: Any, running: bool) -> Iterator[str]:
    """Context manager that writes data in memory to a temporary file and yields the name of the file.

    ``running``: write the data as running text, else as a table. Raises ``UserError``.
    """
    if isinstance(data, Mapping) and are_splits(data):
        raise UserError(f"the data has the splits {', '.join(map(str, data))}; give one of them")
    with TemporaryDirectory(prefix="qkv-") as folder:
        place = Path(folder)
        with write_splits({"train": data}, place, lambda _: place, running) as files:
            yield files.sources["train"]


def choose_split(split: str | None, batches: int | None, data: Any, option: str = "") -> str:
    """Choose the split to evaluate on, by default the validation split; with ``data``, it is not used.

    ``option``: prefix of argument names in error messages, such as "--" for the command line. Raises ``UserError`` for
    invalid values, and if both ``split`` and ``data`` are given.
    """
    if batches is not None and batches < 1:
        raise UserError(
            f"{option}batches: {batches} given, but it should be at least 1; leave it out for the whole split"
        )
    if data is not None and split is not None:
        what = "data in memory" if is_given(data) else "another file"
        raise UserError(
            f"{option}split selects part of the run's own data, and {option}data evaluates on {what}; "
            "use only one of them"
        )
    split = split or "validation"
    if split not in SPLIT_NAMES:
        raise UserError(f"{option}split: there is no split {split!r}; {nearest(split, SPLIT_NAMES)}")
    return split


def predicts_tables(run: Run) -> bool:
    """Return whether a run predicts from a table as a whole, such as the future of a series, not row by row."""
    from qkv.runs.run import task_of

    return task_of(run).predicts_tables


def rows_of_table(run: Run, inputs: Sequence[Any], columns: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Predict from one table, in memory or the name of a file. Raises ``UserError``."""
    from qkv.runs.inference.predict import predict_table

    if len(inputs) != 1:
        raise UserError(f"{len(inputs)} inputs are given; give one table of series")
    if not is_given(inputs[0]):
        return predict_table(run, str(inputs[0]), columns or {}).rows
    with temporary_file(inputs[0], running=False) as source:
        return predict_table(run, source, columns or {}).rows


def rows_of_inputs(run: Run, inputs: Sequence[Any], columns: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Build the input fields of each prediction from inputs given one by one, or as one list or table in memory.

    ``columns``: column of each input field in the table. Raises ``UserError``, with the number of the row, for a row
    that cannot be used.
    """
    from qkv.runs.inference.inputs import input_kinds
    from qkv.runs.inference.predict import rows_for

    kinds = input_kinds(run.recipe)
    if len(inputs) == 1 and _is_many(inputs[0], kinds):
        return _rows(run, inputs[0], kinds, columns or {})
    if columns:
        raise UserError("'columns' names the columns of a table, but the inputs are given one by one; leave it out")
    return rows_for(run, inputs)


def _is_many(inputs: Any, kinds: Mapping[str, str]) -> bool:
    """Return whether ``inputs``, the only argument of a prediction, contains several inputs: a list or a table.

    ``kinds``: kind of each input field of the task. A mapping of lists is a table; a mapping of single values, or of
    lists that are signals, is one input.
    """
    if is_picture(inputs) or is_sound_in_memory(inputs) or ("series" in kinds.values() and _is_one_series(inputs)):
        return False
    if not isinstance(inputs, Mapping) or are_splits(inputs):
        return is_given(inputs)
    if not all(kinds.values()):  # a task outside the package, whose inputs may be lists
        return False
    parts = [inputs[name] for name in kinds if name in inputs] or list(inputs.values())
    return bool(parts) and all(is_column(part) and _holds(part, set(kinds.values())) for part in parts)


def _holds(column: Any, kinds: set[str]) -> bool:
    """Return whether a column contains one value per row, not the words of one sentence or the values of one signal."""
    first = next(iter(column), None)
    if "signal" in kinds:
        return False
    if "series" in kinds:
        return isinstance(first, str) or is_column(first)
    if "image" in kinds:
        return isinstance(first, str) or is_picture(first)
    if "sound" in kinds:
        return isinstance(first, (str, bytes)) or is_sound_in_memory(first)
    return "words" not in kinds or not isinstance(first, str)


def _is_one_series(value: Any) -> bool:
    """Return whether ``value`` is a list or tuple of numbers, a one-dimensional array, or a single number."""
    if isinstance(value, Mapping) or is_frame(value):
        return False
    if hasattr(value, "ndim"):
        return value.ndim == 1
    first = next(iter(value), None) if isinstance(value, (list, tuple)) else value
    return isinstance(first, (int, float)) and not isinstance(first, bool)


def _rows(run: Run, inputs: Any, kinds: Mapping[str, str], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    from qkv.runs.inference.inputs import read_inputs
    from qkv.runs.inference.predict import rows_for

    if "series" in kinds.values() and getattr(inputs, "ndim", 0) > 1 and not is_frame(inputs):
        inputs = list(inputs)  # each row of an array is a series, not a column of a table
    if isinstance(inputs, (list, tuple)):
        if not inputs:
            return []
        first = next(iter(kinds), "text")
        inputs = [entry if isinstance(entry, Mapping) else {first: entry} for entry in inputs]
        if not all(kinds.values()):  # a task outside the package checks its inputs itself
            return rows_for(run, inputs)
    with temporary_file(inputs, running=False) as source:
        return read_inputs(run, source, columns, refuse=True).rows
