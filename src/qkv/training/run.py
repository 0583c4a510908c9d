"""A trained run: read back from its folder, and measured on held-out text."""

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
    """What a run folder holds. ``model`` has the weights of ``step``, after which the held-out loss, or what the recipe names, was best."""

    folder: Path
    recipe: Recipe
    model: Transformer
    vocabulary: Vocabulary
    metrics: list[dict[str, Any]]
    step: int

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the text that the model writes, or reads if it writes none."""
        return self.vocabulary.target

    @property
    def val_loss(self) -> float | None:
        """The held-out loss of ``model`` as training measured it; None if it was not measured."""
        return next((row["val_loss"] for row in reversed(self.metrics) if row.get("step") == self.step and "val_loss" in row), None)

    @property
    def exam(self) -> dict[str, Any] | None:
        """What the exam of these weights found: ``step``, and by split ``figures``, ``sections`` and ``notes``; None if there was none."""
        return read_exam(self.folder, self.step)


def load(source: str | Path, accept_changes: bool = False, copy: bool = False, **published: Any) -> Run:
    """The run in the folder ``source``, or the published checkpoint there or of that name.

    Before the first validation of a run in progress, the weights are those of its newest checkpoint. Weights are loaded with the spec and the
    vocabulary that they were trained with; ``accept_changes`` takes the folder as it is now, even if these were edited, and the newest
    checkpoint where the best weights are missing. ``copy``: read weights into memory, do not map their file. ``published``: dtype, revision and pickles as ``qkv.interop.load.load_published`` takes
    them. Raises UserError if the folder is neither, or a file in it is missing, torn, edited or belongs to another model.
    """
    folder = Path(source)
    if not (folder / SPEC).is_file():
        if is_published(folder) or (not folder.exists() and may_be_name(str(source))):
            return _published(source, {**published, "copy": copy})
        raise UserError(f"{folder} is not a run folder: it holds no {SPEC}")
    if published:
        raise UserError(f"{next(iter(published))!r} says how a published checkpoint is read, and {folder} is a run")
    run = load_adapted(folder, accept_changes, copy)
    fold(run.model)
    return run


def load_adapted(folder: Path, accept_changes: bool = False, copy: bool = False) -> Run:
    """The run in ``folder`` as ``load`` gives it, but with its adapters, if it has such, beside the weights that they adapt."""
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
    """The best weights of a run, or those of its newest checkpoint if it has kept no best ones, with what is stored beside them."""
    path = folder / WEIGHTS
    if path.exists():
        return map_tensors(path, copy)
    checkpoint = Checkpoints(folder / "resume").load(lambda _: None)
    had = had_best(checkpoint, recipe, rows_of(folder))
    if path.exists():  # the first validation of a training in progress came in between
        return map_tensors(path, copy)
    if checkpoint is None:
        raise UserError(f"the run in {folder} has no weights{'' if had else ' yet'}: {path} is missing, and there is no checkpoint")
    if not accept_changes:
        check_kept(folder, had)
    return checkpoint.tensors["weights"], {"step": checkpoint.step, MADE_WITH: checkpoint.state.get(MADE_WITH)}, None


def changed(run: Run) -> str | None:
    """A clause that names what was changed in the folder of ``run`` after its weights were stored; None if nothing was."""
    path = run.folder / WEIGHTS
    if path.exists():
        return edited(read_metadata(path).get(MADE_WITH), run.recipe, run.folder)
    return f"{path} is missing" if had_best(None, run.recipe, run.metrics) else None


def accept(folder: Path) -> str | None:
    """Take the run in ``folder`` as it is now: store its weights, or those of the newest checkpoint where they are missing, with the present
    spec and vocabulary. The clause of ``changed``. Raises UserError where the weights do not fit the spec."""
    with locked(folder):
        run, path = load_adapted(folder, accept_changes=True), folder / WEIGHTS
        change = changed(run)
        if change:
            stored = read_metadata(path) if path.exists() else {"step": run.step}
            stored.pop("sha256", None)
            save_weights(path, run.model, {**stored, MADE_WITH: made_with(run.recipe, folder)})
    return change


def _published(source: str | Path, options: dict[str, Any]) -> Run:
    """A published checkpoint as a run that has not begun: whatever takes a run takes it."""
    found = load_published(source, **options)
    tokenizer = found.tokenizer or AbsentTokenizer.of_published(found.folder)
    return Run(found.folder, recipe_of(found), found.model, Vocabulary(tokenizer, tokenizer, found.labels), [], 0)


def evaluate(run: Run, split: str = VALIDATION, batches: int | None = None, data: str | None = None) -> Exam:
    """Figures of ``run`` by its task over one split of its data, or over all of the file ``data``; the number of targets and the seconds it took.

    ``batches`` None takes all of it and whatever else the task examines; a number takes so many batches, evenly spread. Baselines are fitted
    on the training part of the run alone, and left out, with a note, where that is not at hand any more. Raises ``UserError``.
    """
    task, own, notes = task_of(run), None, []
    try:
        # Columns that a caller chose are those of the other file.
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


_NO_BASELINES = ", so what is fitted on its training part is left out"


def _changed_since(run: Run, own: Material) -> list[str]:
    """A sentence if ``own`` is not what ``run`` was trained on, with which nothing is then fitted."""
    state = newest_state(run.folder / "resume")
    if state is None or state.get("corpus") in (None, own.digest()):
        return []
    if isinstance(own, ExampleMaterial):
        own.fitted_on = None
    return [f"the data {own.name!r} is not as it was in training{_NO_BASELINES}"]


def task_of(run: Run) -> Task:
    """What ``run`` has learned."""
    return build_task(run.recipe.task)


def predict(run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The task's answer for each row; see ``qkv.tasks.task.Task.predict``."""
    return task_of(run).predict(run.model, run.vocabulary, run.recipe, rows)


def rows_for(run: Run, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """What the task of ``run`` predicts from: a mapping for each input, which is one already or a lone text. Raises ``UserError``."""
    asks = task_of(run).asks
    return [_row_for(entry, asks, run.recipe.task.kind) for entry in inputs]


def _row_for(entry: Any, asks: tuple[str, ...], kind: str) -> dict[str, Any]:
    row = {asks[0]: entry} if asks and not isinstance(entry, dict) else entry
    missing = [name for name in asks if not isinstance(row, dict) or name not in row]
    if missing:
        raise UserError(f"the task {kind!r} predicts from {', '.join(asks)}; {missing[0]!r} is missing")
    return row
