"""Trained runs: loading from a folder, and evaluation on held-out data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.data.corpus import VALIDATION
from qkv.data.vocabulary import Vocabulary
from qkv.interop.load import entrances, load_published
from qkv.interop.mapped import MappedFile, watch
from qkv.interop.places import is_published, may_be_name
from qkv.layers.lora import fold
from qkv.models.adapt import add_adapters
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.spec.yaml_io import read_recipe
from qkv.tasks.material import OTHER, ExampleMaterial, Material
from qkv.tasks.registry import build_task
from qkv.tasks.task import Exam, Task
from qkv.tokenizers.absent import AbsentTokenizer
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.checkpoint import Checkpoints, newest_state, save_weights, take_weights
from qkv.training.exam import examine, read_exam
from qkv.training.files import map_tensors, read_metadata
from qkv.training.identity import MADE_WITH, check_unedited, edited, made_with
from qkv.training.published import recipe_of
from qkv.training.record import rows_of
from qkv.training.setup import SPEC, WEIGHTS, check_kept, had_best, locked


@dataclass(frozen=True)
class Run:
    """Trained run. ``model`` has the best weights, those of ``step``, by held-out loss or the metric that the recipe
    names.
    """

    folder: Path
    recipe: Recipe
    model: Transformer
    vocabulary: Vocabulary
    metrics: list[dict[str, Any]]
    step: int

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the text that the model generates, or reads if it generates none."""
        return self.vocabulary.target

    @property
    def val_loss(self) -> float | None:
        """Held-out loss of ``model``, as measured in training; None if not measured."""
        return next((row["val_loss"] for row in reversed(self.metrics) if row.get("step") == self.step and "val_loss" in row), None)

    @property
    def exam(self) -> dict[str, Any] | None:
        """Final evaluation of these weights: ``step``, and ``figures``, ``sections`` and ``notes`` by split; None if
        missing.
        """
        return read_exam(self.folder, self.step)


def load(source: str | Path, accept_changes: bool = False, copy: bool = False, **published: Any) -> Run:
    """Load the run in the folder ``source``, or the published checkpoint in that folder or of that name.

    Before the first validation of a run in progress, the weights are those of its newest checkpoint.

    accept_changes: load the folder even if spec or vocabulary were edited since the weights were stored, and use the
        newest checkpoint if the best weights are missing.
    copy: read weights into memory instead of mapping their file.
    published: dtype, revision and pickles, as for ``qkv.interop.load.load_published``.

    Raises UserError if the folder is neither, or a file in it is missing, damaged, edited or belongs to another model.
    """
    folder = Path(source)
    if not (folder / SPEC).is_file():
        if is_published(folder) or (not folder.exists() and may_be_name(str(source))):
            return _published(source, {**published, "copy": copy})
        raise UserError(f"{folder} is not a run folder: it holds no {SPEC}")
    if published:
        raise UserError(f"{next(iter(published))!r} applies to published checkpoints, and {folder} is a run")
    run = load_adapted(folder, accept_changes, copy)
    fold(run.model)
    return run


def load_adapted(folder: Path, accept_changes: bool = False, copy: bool = False) -> Run:
    """Load the run in ``folder`` as ``load`` does, but with its adapters, if any, unmerged."""
    recipe = read_recipe(folder)
    tensors, metadata, source = _weights(folder, recipe, accept_changes, copy)
    if not accept_changes:
        check_unedited(metadata.get(MADE_WITH), recipe, folder)
    vocabulary = Vocabulary.load(folder)
    with torch.device("meta"):
        model = Transformer(recipe.model)
        add_adapters(model, recipe.training)
    take_weights(model, tensors, folder / WEIGHTS)
    watch(model, entrances(model), [source] if source else [])
    return Run(folder, recipe, model.eval(), vocabulary, rows_of(folder), int(metadata.get("step", 0)))


def _weights(
    folder: Path, recipe: Recipe, accept_changes: bool, copy: bool
) -> tuple[Mapping[str, Tensor], Mapping[str, Any], MappedFile | None]:
    """Best weights of a run, or those of its newest checkpoint if there are none yet, with their metadata."""
    path = folder / WEIGHTS
    if path.exists():
        return map_tensors(path, copy)
    checkpoint = Checkpoints(folder / "resume").load(lambda _: None)
    had = had_best(checkpoint, recipe, rows_of(folder))
    if path.exists():  # written meanwhile by the first validation of a training in progress
        return map_tensors(path, copy)
    if checkpoint is None:
        raise UserError(f"the run in {folder} has no weights{'' if had else ' yet'}: {path} is missing, and there is no checkpoint")
    if not accept_changes:
        check_kept(folder, had)
    return checkpoint.tensors["weights"], {"step": checkpoint.step, MADE_WITH: checkpoint.state.get(MADE_WITH)}, None


def changed(run: Run) -> str | None:
    """Describe the first change to the folder of ``run`` since its weights were stored; None if unchanged."""
    path = run.folder / WEIGHTS
    if path.exists():
        return edited(read_metadata(path).get(MADE_WITH), run.recipe, run.folder)
    return f"{path} is missing" if had_best(None, run.recipe, run.metrics) else None


def accept(folder: Path) -> str | None:
    """Accept the present spec and vocabulary of the run in ``folder``: store its weights with them, taken from the
    newest checkpoint if the best are missing.

    Returns the description of ``changed``. Raises UserError if the weights do not fit the spec.
    """
    with locked(folder):
        run, path = load_adapted(folder, accept_changes=True), folder / WEIGHTS
        change = changed(run)
        if change:
            stored = read_metadata(path) if path.exists() else {"step": run.step}
            stored.pop("sha256", None)
            save_weights(path, run.model, {**stored, MADE_WITH: made_with(run.recipe, folder)})
    return change


def _published(source: str | Path, options: dict[str, Any]) -> Run:
    """Wrap a published checkpoint as a run without training."""
    found = load_published(source, **options)
    tokenizer = found.tokenizer or AbsentTokenizer.of_published(found.folder)
    return Run(found.folder, recipe_of(found), found.model, Vocabulary(tokenizer, tokenizer, found.labels), [], 0)


def evaluate(run: Run, split: str = VALIDATION, batches: int | None = None, data: str | None = None) -> Exam:
    """Evaluate ``run`` on one split of its data, or on the file ``data``: figures, number of targets and seconds taken.

    ``batches`` None evaluates all data and the task's further metrics; a number evaluates so many batches, evenly
    spaced. Baselines are fitted on the run's training split only, and omitted, with a note, if it is no longer
    available. Raises ``UserError``.
    """
    task, own, notes = task_of(run), None, []
    try:
        # Columns chosen by the caller belong to the other file.
        trained = read_recipe(run.folder) if data is not None and (run.folder / SPEC).is_file() else run.recipe
        own = task.open(trained, run.vocabulary)
        notes += _changed_since(run, own)
    except UserError as error:
        if data is None or task.spec.reads == "nothing":
            raise
        notes.append(f"the run's own data cannot be opened ({error}){_NO_BASELINES}")
    material = own if data is None else task.open_other(run.recipe, run.vocabulary, data, own)
    assert material is not None
    exam = examine(run.model, task, material, run.recipe, OTHER if data is not None else split, batches)
    assert exam is not None
    return replace(exam, notes=[*exam.notes, *(material.notes if data is not None else ()), *notes])


_NO_BASELINES = ", so baselines fitted on its training part are omitted"


def _changed_since(run: Run, own: Material) -> list[str]:
    """Note if the data ``own`` changed since training; baselines are then not fitted."""
    state = newest_state(run.folder / "resume")
    if state is None or state.get("corpus") in (None, own.digest()):
        return []
    if isinstance(own, ExampleMaterial):
        own.fitted_on = None
    return [f"the data {own.name!r} is not as it was in training{_NO_BASELINES}"]


def task_of(run: Run) -> Task:
    """Task of ``run``."""
    return build_task(run.recipe.task)


def predict(run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predict the task's answer for each row; see ``qkv.tasks.task.Task.predict``."""
    return task_of(run).predict(run.model, run.vocabulary, run.recipe, rows)


def rows_for(run: Run, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """Inputs of the task of ``run`` as mappings; each input is a mapping or a single text. Raises ``UserError``."""
    asks = task_of(run).asks
    return [_row_for(entry, asks, run.recipe.task.kind) for entry in inputs]


def _row_for(entry: Any, asks: tuple[str, ...], kind: str) -> dict[str, Any]:
    row = {asks[0]: entry} if asks and not isinstance(entry, dict) else entry
    missing = [name for name in asks if not isinstance(row, dict) or name not in row]
    if missing:
        raise UserError(f"the task {kind!r} predicts from {', '.join(asks)}; {missing[0]!r} is missing")
    return row
