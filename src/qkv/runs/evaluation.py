"""Evaluation of models and runs on held-out data: the loss and the other metrics of the task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import TEST, VALIDATION
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.linear.precision import autocast
from qkv.report.fragment import evaluation_fragment
from qkv.runs.inference.calibration import with_calibration
from qkv.runs.reference import open_reference
from qkv.runs.run import Run, task_of
from qkv.runs.storage.before_refit import NOTE, without_validation_rows
from qkv.runs.storage.checkpoint import newest_state
from qkv.runs.storage.folder import SPEC
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import OTHER, Dataset, ExampleDataset
from qkv.tasks.task import Evaluation, Task, Totals


class Figures(dict[str, float]):
    """Metrics of an evaluation by name; notebooks show them with the name of the split (``part``) and the ``notes``.
    ``evaluation``: the complete result, including the sections of a report.
    """

    def __init__(self, evaluation: Evaluation, part: str):
        super().__init__(evaluation.figures)
        self.evaluation, self.part, self.notes = evaluation, part, tuple(evaluation.notes)

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return evaluation_fragment("Evaluation", {self.part: {"figures": self, "notes": self.notes}})


def measure(
    model: Transformer,
    task: Task,
    batches: Iterable[Batch],
    number_format: str,
    stop: Callable[[], bool] = lambda: False,
) -> Totals | None:
    """Sum the losses and correct predictions of the task over ``batches``, without dropout, in the precision
    ``number_format`` ("fp32", "bf16"); None if ``stop`` returned True.
    """
    device = model.device
    seen = Totals()
    with evaluating(model), torch.no_grad():
        for batch in batches:
            if stop():
                return None
            with autocast(number_format, device):
                seen.add(task.observe(model, batch.to(device)))
    return seen


def never() -> bool:
    """Return False: the default stop condition of evaluations."""
    return False


def evaluate_split(
    model: Any,
    task: Task,
    dataset: Dataset,
    recipe: Recipe,
    split: str,
    batches: int | None = None,
    stop: Callable[[], bool] = never,
) -> Evaluation | None:
    """Evaluate ``model`` on one split: metrics, including the number of targets and the seconds taken, and details for
    the report; None if ``stop`` returned True.

    ``batches``: None evaluates the whole split and all metrics of the task; a number evaluates that many batches,
    evenly spaced, and omits metrics that need the whole split.
    """
    began = time.perf_counter()
    seen = measure(model, task, dataset.rows(split, batches), recipe.training.precision, stop)
    if seen is None:
        return None
    whole = task.evaluates and batches is None
    if whole:
        evaluation = task.evaluate(model, dataset, split, seen, recipe)
        evaluation = with_calibration(evaluation, model, task, dataset, split, recipe)
    else:
        evaluation = Evaluation(task.figures(seen, dataset.scale(split)))
    if stop():
        return None
    figures = {**evaluation.figures, "targets": seen.count, "seconds": time.perf_counter() - began}
    return replace(evaluation, figures=figures, notes=[*evaluation.notes, *dataset.notes_on(split)])


def held_out(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the splits that the final evaluation uses: validation, and test if present."""
    return tuple(split for split in (VALIDATION, TEST) if split in dataset.splits)


def evaluate(run: Run, split: str = VALIDATION, batches: int | None = None, data: str | None = None) -> Evaluation:
    """Evaluate ``run`` on one split of its data, or on the file ``data``: metrics, including the number of targets and
    the seconds taken, and details for the report.

    ``batches``: None evaluates all data and all metrics of the task; a number evaluates that many batches, evenly
    spaced, and omits metrics that need all data. Baselines are fitted on the run's training split only; if it is no
    longer available, they are omitted, with a note. Raises ``UserError``.
    """
    task, dataset_of_run, notes = task_of(run), None, []
    open_reference(task, run.model, run.recipe)
    try:
        # The caller's choice of columns applies to the file ``data``, not to the data that the run was trained on.
        trained = read_recipe(run.folder) if data is not None and (run.folder / SPEC).is_file() else run.recipe
        dataset_of_run = task.open(trained, run.vocabulary)
        notes += _changed_since(run, dataset_of_run)
    except UserError as error:
        if data is None or task.spec.reads == "nothing":
            raise
        notes.append(f"the data that the run was trained on cannot be opened ({error}){_NO_BASELINES}")
    dataset = dataset_of_run if data is None else task.open_other(run.recipe, run.vocabulary, data, dataset_of_run)
    assert dataset is not None
    if data is None and split == VALIDATION:
        with without_validation_rows(run.wide, run.folder) as replaced:
            evaluation = evaluate_split(run.model, task, dataset, run.recipe, split, batches)
        notes += [NOTE] if replaced else []
    else:
        evaluation = evaluate_split(run.model, task, dataset, run.recipe, OTHER if data is not None else split, batches)
    assert evaluation is not None
    return replace(evaluation, notes=[*evaluation.notes, *(dataset.notes if data is not None else ()), *notes])


_NO_BASELINES = ", so baselines fitted on its training split are omitted"


def _changed_since(run: Run, dataset: Dataset) -> list[str]:
    """Return notes for the user if ``dataset`` changed since the run was trained; in that case, no baselines are
    fitted.
    """
    state = newest_state(run.folder / "resume")
    if state is None or state.get("corpus") in (None, dataset.digest()):
        return []
    if isinstance(dataset, ExampleDataset):
        dataset.fitted_on = None
    return [f"the data {dataset.name!r} has changed since training{_NO_BASELINES}"]
